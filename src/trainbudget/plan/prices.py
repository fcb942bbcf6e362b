"""What one GPU costs an hour, where the figure is from and of when.

First hit wins: the price given; the user's price file; the dated row of this provider and instance; the dated rows of this
provider for the same accelerator; the median over providers of dated rows, with its range. Otherwise there is no price: GPU
hours and no money. A row of the built-in table without a date is never used.
"""

from __future__ import annotations

import csv
import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from statistics import median

from trainbudget import budget, events
from trainbudget.errors import ConfigError
from trainbudget.plan import hardware
from trainbudget.plan.instance import Instance

#: List prices move a few times a year; older ones say so.
_STALE_AFTER = datetime.timedelta(days=180)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """The price of one GPU-hour; `low`..`high` is the range it was chosen from, `assumed` = not this machine's own row."""

    per_gpu_hour: float
    currency: str
    source: str
    date: str | None
    spot: bool
    low: float
    high: float
    assumed: bool = False
    note: str | None = None

    def fact(self, t_s: float = 0.0) -> events.Price:
        """The same price as a trace fact."""
        return events.Price(
            t_s=t_s, per_gpu_hour=self.per_gpu_hour, currency=self.currency, source=self.source, date=self.date, spot=self.spot
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRow:
    """One row of a price table: an instance with `count` accelerators."""

    accelerator: str
    provider: str
    region: str
    instance: str
    count: int
    vcpus: float | None
    on_demand: float | None  # the whole instance, an hour
    spot: float | None
    currency: str
    source: str
    date: str | None

    def per_gpu(self, spot: bool) -> float | None:
        """The price of one accelerator."""
        whole = self.spot if spot else self.on_demand
        return None if whole is None else whole / max(1, self.count)


@lru_cache(maxsize=1)
def price_rows() -> tuple[PriceRow, ...]:
    """The built-in table."""
    text = resources.files("trainbudget.plan").joinpath("data/prices.csv").read_text(encoding="utf-8")
    return tuple(_row_of(r, "table") for r in csv.DictReader(text.splitlines()))


def read_price_file(path: Path) -> tuple[PriceRow, ...]:
    """A user's CSV: the built-in table's columns, or simply `accelerator,per_gpu_hour[,currency][,date]`; `*` = any accelerator.

    Raises:
        ConfigError: unreadable, or a row without accelerator or price.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"price file {path}: {error}") from None
    if not rows:
        raise ConfigError(f"price file {path}: no rows; write for example accelerator,per_gpu_hour,currency,date")
    return tuple(_row_of(r, str(path), line) for line, r in enumerate(rows, start=2))


def _row_of(row: dict[str, str], source: str, line: int = 0) -> PriceRow:
    def number(key: str) -> float | None:
        text = (row.get(key) or "").strip()
        return budget.parse_money(text, what=f"{source} line {line}, {key}").amount if text else None

    per_gpu = number("per_gpu_hour")
    count = int(number("accelerator_count") or 1) if per_gpu is None else 1
    on_demand = per_gpu if per_gpu is not None else number("on_demand_usd_per_hour")
    if line and (not row.get("accelerator") or on_demand is None):
        raise ConfigError(f"{source} line {line}: needs accelerator and per_gpu_hour (or on_demand_usd_per_hour)")
    date = (row.get("source_date") or row.get("date") or "").strip() or None
    return PriceRow(
        accelerator=row.get("accelerator") or "",
        provider=(row.get("provider") or "").lower(),
        region=row.get("region") or "",
        instance=row.get("instance_type") or row.get("instance") or "",
        count=count,
        vcpus=number("vcpus"),
        on_demand=on_demand,
        spot=number("spot_usd_per_hour"),
        currency=(row.get("currency") or "USD").upper(),
        source=source if line else row.get("source") or source,
        date=date,
    )


def resolve(
    gpu: str | hardware.GpuSpec | None,
    *,
    given: str | float | budget.Money | None = None,
    file: Path | str | None = None,
    provider: str | None = None,
    instance: str | None = None,
    region: str | None = None,
    spot: bool | None = None,
    today: datetime.date | None = None,
) -> Quote | None:
    """The price of one GPU-hour, or None when nothing given or dated matches. `spot` counts only when told, never guessed.

    Raises:
        ConfigError: an unreadable price or price file, or an instance that the table knows with another accelerator.
    """
    if given is not None:
        money = given if isinstance(given, budget.Money) else budget.parse_price(given)
        return _quote([money.amount], money.currency or "USD", "given", None, bool(spot))
    key, share = _price_key(gpu)
    if file is not None:
        quote = _from_file(read_price_file(Path(file)), key, provider, instance, bool(spot))
        if quote is not None:
            return quote
    if key is None:
        return None
    where = Instance(provider=(provider or "").lower() or None, instance=instance, region=region)
    return _from_table(key, share, where, bool(spot), today)


def _price_key(gpu: str | hardware.GpuSpec | None) -> tuple[str | None, float]:
    """The price table's name of an accelerator, and the share of it that a MIG slice is charged for."""
    if gpu is None:
        return None, 1.0
    if isinstance(gpu, str):
        known = {r.accelerator.lower(): r.accelerator for r in price_rows()}
        spec = hardware.find_gpu(gpu)
        if spec is None:
            return known.get(gpu.lower()), 1.0
        gpu = spec
    return gpu.price_key, gpu.mig_fraction or 1.0


def _from_file(rows: Iterable[PriceRow], key: str | None, provider: str | None, instance: str | None, spot: bool) -> Quote | None:
    def rank(row: PriceRow) -> int | None:
        """How closely a row fits; None = it is about something else."""
        named = [
            (row.instance, instance),
            (row.provider, (provider or "").lower()),
            (row.accelerator if row.accelerator != "*" else "", key),
        ]
        if any(has and wanted and has.lower() != wanted.lower() for has, wanted in named) or (
            row.accelerator != "*" and key is None
        ):
            return None
        return sum(weight for weight, (has, wanted) in zip((4, 2, 1), named, strict=True) if has and wanted)

    ranked = [(r, row) for row in rows if (r := rank(row)) is not None]
    if not ranked:
        return None
    row = max(ranked, key=lambda pair: pair[0])[1]
    price = row.per_gpu(spot) or row.per_gpu(False)
    return None if price is None else _quote([price], row.currency, row.source, row.date, spot and row.spot is not None)


def _from_table(key: str, share: float, where: Instance, spot: bool, today: datetime.date | None) -> Quote | None:
    dated = [r for r in price_rows() if r.date is not None and r.accelerator == key and r.on_demand is not None]
    own = [r for r in dated if r.provider == where.provider]
    exact = [r for r in own if where.instance and r.instance.lower() == where.instance.lower()]
    if exact:
        row = next((r for r in exact if r.region == where.region), exact[0])
        elsewhere = f"price of {row.region}" if where.region and row.region != where.region else None
        source = f"{row.provider} {row.instance}"
        return _of_rows([row], share, spot, source, today, assumed=elsewhere is not None, note=elsewhere)
    if own:
        return _of_rows(own, share, spot, _shape_source(own), today, assumed=True)
    fresh = _fresh(dated)
    cheapest = [_cheapest(r for r in fresh if r.provider == p) for p in sorted({r.provider for r in fresh})]
    if not cheapest:
        return None
    names = ", ".join(r.provider for r in cheapest)
    source = f"{names} list price" if len(cheapest) == 1 else f"median of {names}"
    note = f"no dated price of {where.provider}" if where.provider else None
    return _of_rows(cheapest, share, spot, source, today, assumed=True, note=note, middle=True)


def _shape_source(rows: list[PriceRow]) -> str:
    return f"{rows[0].provider} {rows[0].instance}" if len(rows) == 1 else f"{rows[0].provider}, cheapest of {len(rows)} shapes"


def _cheapest(rows: Iterable[PriceRow]) -> PriceRow:
    return min(rows, key=lambda r: r.per_gpu(False) or 0.0)


def _day(date: str | None) -> datetime.date:
    """A day; a month alone counts as its first day."""
    text = date or ""
    return datetime.date.fromisoformat(text if len(text) > len("2025-12") else f"{text}-01")


def _fresh(rows: list[PriceRow]) -> list[PriceRow]:
    """The rows no older than half a year before the newest: a median never mixes last year's market with this one's."""
    newest = max((_day(r.date) for r in rows), default=None)
    return [] if newest is None else [r for r in rows if newest - _day(r.date) <= _STALE_AFTER]


def _of_rows(
    rows: list[PriceRow],
    share: float,
    spot: bool,
    source: str,
    today: datetime.date | None,
    *,
    assumed: bool,
    note: str | None = None,
    middle: bool = False,
) -> Quote:
    is_spot = spot and any(r.spot is not None for r in rows)
    values = sorted(p * share for r in rows if (p := r.per_gpu(is_spot)) is not None)
    notes = [note] if note else []
    if spot and not is_spot:
        notes.append("no dated spot price: on-demand")
    if share != 1.0:
        notes.append(f"MIG slice charged {share:.2f} of the card")
    date = min((r.date for r in rows if r.date is not None), key=_day)
    if today is not None and today - _day(date) > _STALE_AFTER:
        notes.append(f"price is {(today - _day(date)).days} days old")
    quote = _quote(values, rows[0].currency, source, date, is_spot, assumed=assumed, note="; ".join(notes) or None, middle=middle)
    if not is_spot:
        return quote
    # A spot figure is a snapshot: what the same machine costs on demand bounds it.
    high = max(p * share for r in rows if (p := r.per_gpu(False)) is not None)
    return _quote([*values, high], quote.currency, source, date, True, assumed=assumed, note=quote.note, value=quote.per_gpu_hour)


def _quote(
    values: list[float],
    currency: str,
    source: str,
    date: str | None,
    spot: bool,
    *,
    assumed: bool = False,
    note: str | None = None,
    middle: bool = False,
    value: float | None = None,
) -> Quote:
    chosen = value if value is not None else median(values) if middle else min(values)
    return Quote(
        per_gpu_hour=chosen,
        currency=currency,
        source=source,
        date=date,
        spot=spot,
        low=min(values),
        high=max(values),
        assumed=assumed,
        note=note,
    )


def cpu_hour(provider: str | None = None, *, today: datetime.date | None = None) -> Quote:
    """What one vCPU-hour of a plain machine costs: for work before the first step, which needs no GPU."""
    rows = [r for r in price_rows() if r.accelerator == "cpu" and r.date is not None and r.vcpus]
    own = [r for r in rows if r.provider == (provider or "").lower()] or rows
    values = [r.on_demand / r.vcpus for r in own if r.on_demand is not None and r.vcpus]
    source = f"{own[0].provider} {own[0].instance}" if len(own) == 1 else "median of " + ", ".join(r.provider for r in own)
    date = min(r.date for r in own if r.date is not None)
    return _quote(values, "USD", source, date, False, assumed=len(own) > 1, middle=True)


def undated_hint(gpu: str | hardware.GpuSpec, provider: str | None, instance: str | None) -> str | None:
    """One line when the named instance is in the table without a date, so that the user can give the price; else None."""
    key, _ = _price_key(gpu)
    for row in price_rows():
        named = row.provider == (provider or "").lower() and row.instance.lower() == (instance or "").lower()
        if named and row.accelerator == key and row.date is None and row.on_demand is not None:
            return (
                f"the table's {row.on_demand:g} {row.currency}/h for {row.provider} {row.instance} has no date and is not used: "
                "give price_per_hour"
            )
    return None
