"""Quantities as a person reads them; unknown is said, never shown as 0."""

from __future__ import annotations

UNKNOWN = "unknown"


def money(amount: float | None, currency: str | None) -> str:
    """`0.42 USD`; below a tenth three decimals, below a hundredth four."""
    if amount is None:
        return UNKNOWN
    unit = f" {currency}" if currency else ""
    if amount != 0 and abs(amount) < 0.1:
        digits = 4 if abs(amount) < 0.01 else 3
        return f"{amount:.{digits}f}{unit}"
    return f"{amount:,.2f}{unit}"


def duration(seconds: float | None) -> str:
    """`1 h 21 min`, `2 min 12 s`, `8.4 s`, `0.94 s`, `31 ms`."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds < 0.0995:
        return f"{seconds * 1000:.2g} ms" if seconds < 0.00995 else f"{seconds * 1000:.0f} ms"
    if seconds < 0.995:
        return f"{seconds:.2f} s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60.0)
    if seconds < 600.0:
        whole = round(seconds)
        return f"{whole // 60} min {whole % 60:02d} s"
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes / 1440.0:.1f} days"


def size(value_bytes: float | None) -> str:
    """`48.9 GiB`, `512 MiB`."""
    if value_bytes is None:
        return UNKNOWN
    if abs(value_bytes) < 1024.0**3:
        return f"{value_bytes / 1024.0**2:,.0f} MiB"
    return f"{value_bytes / 1024.0**3:,.1f} GiB"


def count(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}"


def percent(ratio: float | None) -> str:
    """`21 %`, `0.4 %`."""
    if ratio is None:
        return UNKNOWN
    value = ratio * 100.0
    return f"{value:.1f} %" if 0 < abs(value) < 0.95 else f"{value:.0f} %"


def times_over(ratio: float) -> str:
    """A measured value over the planned one: `+50 %`, from twice on `8.8 times as long`."""
    return signed_percent(ratio - 1.0) if ratio < 2.0 else f"{ratio:.1f} times as long"


def signed_percent(ratio: float) -> str:
    """`+3 %`, `-10 %`: a difference of the whole."""
    return f"{ratio * 100.0:+.0f} %"
