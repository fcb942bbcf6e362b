"""Findings in the log: once when raised, once when over, the closing table once."""

from __future__ import annotations

import logging

from trainbudget.engine.report import Report
from trainbudget.events import End, Header, Step, Tick
from trainbudget.findings import Advice, Finding, Severity
from trainbudget.live.pipeline import Pipeline
from trainbudget.sinks.log import LogSink


def a_report(*, ended: bool = False) -> Report:
    pipeline = Pipeline()
    for fact in (Header(run="night"), Step(t_s=10.0, step=1, start_s=9.0), Tick(t_s=12.0)):
        pipeline.feed(fact)
    if ended:
        pipeline.feed(End(t_s=13.0, outcome="finished"))
    return pipeline.publish()


def finding(severity: Severity = Severity.WARNING, **more) -> Finding:
    advice = (Advice(lever="workers", setting="dataloader_num_workers=8 (now 0)", saving={"time_s": 60.0}),)
    return Finding(
        code="input_bound", cause="workers", severity=severity, raised_s=10.0, advice=advice,
        summary="31 % of the time is waited", **more,
    )  # fmt: skip


def said(caplog, **arguments) -> list[tuple[int, str]]:
    caplog.clear()
    logger = logging.getLogger("test.trainbudget")
    with caplog.at_level(logging.INFO, logger="test.trainbudget"):
        LogSink(logger).write(**{"report": a_report(), "raised": (), "cleared": ()} | arguments)
    return [(r.levelno, r.getMessage()) for r in caplog.records]


def test_a_finding_is_said_with_the_change_and_its_code_last(caplog):
    ((level, text),) = said(caplog, raised=(finding(),))
    assert level == logging.WARNING
    assert text.startswith("31 % of the time is waited")
    assert "Try dataloader_num_workers=8 (now 0): saves up to 60 s" in text
    assert text.endswith("[input_bound/workers]")


def test_severity_becomes_the_level(caplog):
    levels = [said(caplog, raised=(finding(s),))[0][0] for s in (Severity.INFO, Severity.WARNING, Severity.CRITICAL)]
    assert levels == [logging.INFO, logging.WARNING, logging.CRITICAL]


def test_the_end_of_a_finding_is_said_unless_it_was_only_information(caplog):
    assert said(caplog, cleared=(finding(Severity.INFO, cleared_s=70.0),)) == []
    ((level, text),) = said(caplog, cleared=(finding(cleared_s=70.0),))
    assert level == logging.INFO
    assert "over after 60 s" in text


def test_the_closing_table_comes_once(caplog):
    tables: list[str] = []
    sink = LogSink(logging.getLogger("test.trainbudget"), closing=tables.append)
    sink.write(a_report(), (), ())
    assert tables == []
    for _ in range(2):
        sink.write(a_report(ended=True), (), ())
    assert len(tables) == 1
    assert "night finished: 1 steps" in tables[0]
