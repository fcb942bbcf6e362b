"""Each alert of the catalogue fires on the series that are its, and is silent on those beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rules.promtool import input_series, needs_promtool, run_cases
from trainbudget.catalog.alert_spec import AlertSpec
from trainbudget.catalog.alerts import ALERTS

pytestmark = [needs_promtool, pytest.mark.servers, pytest.mark.slow]


def case(alert: AlertSpec, *, fires: bool) -> dict[str, Any]:
    count = f'count(ALERTS{{alertname="{alert.name}",alertstate="firing"}})'
    expected = [{"labels": "{}", "value": 1}] if fires else []
    return {
        "name": f"{alert.name} {'fires' if fires else 'is silent'}",
        "interval": "1m",
        "input_series": input_series(alert.fires if fires else alert.silent),
        "promql_expr_test": [{"expr": count, "eval_time": alert.at, "exp_samples": expected}],
    }


def test_every_alert_fires_on_its_own_series(tmp_path: Path) -> None:
    run_cases(tmp_path, [case(alert, fires=True) for alert in ALERTS])


def test_every_alert_is_silent_on_the_series_beside_it(tmp_path: Path) -> None:
    run_cases(tmp_path, [case(alert, fires=False) for alert in ALERTS])


def test_a_case_that_is_wrong_is_noticed(tmp_path: Path) -> None:
    """Guards the two tests above against a harness that passes whatever comes."""
    alert = ALERTS[0]
    wrong = {**case(alert, fires=True), "input_series": input_series(alert.silent)}
    with pytest.raises(AssertionError, match="FAILED"):
        run_cases(tmp_path, [wrong])
