"""docs/findings.md and docs/levers.md hold every code, cause, threshold and lever, with links that lead somewhere."""

from __future__ import annotations

import re

from trainbudget.catalog.levers import LEVERS
from trainbudget.engine.detect import RECORDS
from trainbudget.render.findings_docs import findings_markdown, levers_markdown


def anchors(text: str) -> set[str]:
    return {match.group(1) for match in re.finditer(r"^#+ (\S+)$", text, re.MULTILINE)}


def test_every_code_with_its_causes_and_thresholds():
    text = findings_markdown()
    assert set(RECORDS) <= anchors(text)
    for record in RECORDS.values():
        for word in (*record.causes, *(t.name for t in record.thresholds), *record.evidence):
            assert f"`{word}`" in text


def test_every_lever_and_all_links():
    findings, levers = findings_markdown(), levers_markdown()
    assert {lever.name for lever in LEVERS.values()} <= anchors(levers)
    linked = set(re.findall(r"\(levers\.md#(\w+)\)", findings)) | set(re.findall(r"\(#(\w+)\)", levers))
    assert linked <= anchors(levers)
    back = set(re.findall(r"\(findings\.md#(\w+)\)", levers)) | set(re.findall(r"\(#(\w+)\)", findings))
    assert back <= anchors(findings)


def test_tables_have_whole_rows():
    for text in (findings_markdown(), levers_markdown()):
        for table in re.findall(r"(?:^\|.*\|$\n?)+", text, re.MULTILINE):
            widths = {len(re.split(r"(?<!\\)\|", row)) for row in table.strip().splitlines()}
            assert len(widths) == 1, table[:200]
