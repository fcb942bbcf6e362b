"""Text that may stand in a label: printable, short, never empty where a name is due."""

from __future__ import annotations

from trainbudget.events import Header

#: Longest text in a label (contract).
MOST_CHARACTERS = 128
UNNAMED = "unnamed"
UNKNOWN_CURRENCY = "unspecified"


def clean(text: object, *, most: int = MOST_CHARACTERS) -> str:
    """`text` with everything unprintable (controls, surrogates, line separators) replaced by `_`, cut to `most`."""
    raw = str(text)[: 4 * most]
    if raw.isprintable():
        return raw.strip()[:most].strip()
    return "".join(c if c.isprintable() else "_" for c in raw).strip()[:most].strip()


def run_label(header: Header) -> str:
    """`NAME-ID`, as the record's folder is called: two runs of one name stay two series."""
    name, ident = clean(header.run or ""), clean(header.id or "", most=48)
    if not ident or name.endswith(ident):
        return name or UNNAMED
    return f"{(name or UNNAMED)[: MOST_CHARACTERS - len(ident) - 1]}-{ident}"


def rank_label(header: Header) -> str:
    return str(header.rank or 0)
