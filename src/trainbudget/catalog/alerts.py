"""All alerts: those only the server can raise, then one for each finding code. Routes and who silences whom."""

from __future__ import annotations

from trainbudget.catalog.alert_spec import AlertSpec
from trainbudget.catalog.code_alerts import alert_name, code_alerts
from trainbudget.catalog.server_alerts import OOM_SOON, RUN_VANISHED, SERVER_ALERTS, TARGET_DOWN
from trainbudget.engine.detect import RECORDS
from trainbudget.findings import Route

ALERTS: tuple[AlertSpec, ...] = (*SERVER_ALERTS, *code_alerts(RECORDS.values()))

#: Who hears of it and how soon: (wait before the first message, pause before it is repeated).
ROUTES: dict[Route, tuple[str, str]] = {
    Route.PAGE: ("10s", "1h"),
    Route.TICKET: ("5m", "24h"),
    Route.WEEKLY: ("1h", "168h"),
}

#: While the first fires for a run, the others say nothing new about it.
INHIBITIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (RUN_VANISHED.name, (TARGET_DOWN.name,)),
    (OOM_SOON.name, tuple(alert_name(c) for c in ("oom_forecast", "oom_predicted", "oom_next_phase", "memory_leak"))),
    (alert_name("hang"), tuple(alert_name(c) for c in ("gpu_idle", "cost_over_budget", "time_over_budget"))),
    (alert_name("gpu_lost"), tuple(alert_name(c) for c in ("hang", "gpu_idle", "sampler_stalled"))),
)
