"""Pieces of alert text: a number or an amount of money, looked up when the alert fires. Understood by Prometheus and vmalert."""

from __future__ import annotations

from trainbudget.catalog.recording import SPEND, WASTED, RecordSpec
from trainbudget.catalog.spec import MetricSpec

#: How Prometheus writes a value of a unit.
DURATION = "humanizeDuration"
PERCENT = "humanizePercentage"
BYTES = "humanize1024"
AMOUNT = 'printf "%.2f"'


def look_up(before: str, expression: str, after: str, *, how: str = AMOUNT, currency: bool = False) -> str:
    """`before VALUE [CURRENCY] after` for the first answer of `expression`, nothing where there is none.

    `$RUN` in the expression is the alert's run, quoted.
    """
    money = ' {{ . | label "currency" }}' if currency else ""
    query = "printf `" + expression.replace("%", "%%").replace("$RUN", "%q") + "` $labels.run"
    if "$RUN" not in expression:
        query = "`" + expression + "`"
    return f"{{{{ range query ({query}) }}}}{before}{{{{ . | value | {how} }}}}{money}{after}{{{{ end }}}}"


def name_it(before: str, expression: str, labels: str) -> str:
    """`before LABELS` for every answer of `expression`: which GPU, which rank, which reason.

    `labels` is `GPU=gpu rank=rank`: the word, and the label that stands behind it.
    """
    words = "".join(
        f' {word} {{{{ . | label "{label}" }}}}' if word else f' {{{{ . | label "{label}" }}}}'
        for word, _, label in (part.partition("=") for part in labels.split())
    )
    query = expression.replace("%", "%%").replace("$RUN", "%q")
    return f"{{{{ range query (printf `{query}` $labels.run) }}}}{before}{words}{{{{ end }}}}"


def of_run(metric: MetricSpec | RecordSpec, *, how: str = "max") -> str:
    """PromQL for one number of the alert's run."""
    return f"{how}({metric.name}{{run=$RUN}})"


def spend() -> str:
    """What the run costs an hour."""
    return look_up(" It costs ", f"sum by (currency) ({SPEND.name}{{run=$RUN}})", " an hour.", currency=True)


def wasted() -> str:
    """What of it is wasted an hour."""
    return look_up(" Wasted now: ", f"sum by (currency) ({WASTED.name}{{run=$RUN}})", " an hour.", currency=True)
