"""The settings and self families."""

from __future__ import annotations

import msgspec
import pytest

from trainbudget.events import Header, Lint, Self
from trainbudget.findings import Severity
from unit.engine.feeding import findings
from unit.engine.minimal import efficiency, settings
from unit.engine.traces import Build


@pytest.mark.parametrize(
    ("code", "severity"), [("setting_unknown", "warning"), ("setting_renamed", "info"), ("setting_no_effect", "info")]
)
def test_each_lint_fact_becomes_its_finding(code, severity):
    (found,) = findings(settings.MINIMAL[code]())
    assert (found.code, found.severity.value) == (code, severity)
    assert found.evidence["setting"] in found.summary
    assert found.cleared_s is None


def test_every_setting_once_and_unknown_codes_never():
    build = Build().gpu().start().steps(10)
    for setting in ("a", "b", "a"):
        build.add(Lint(t_s=build.t, code="setting_unknown", setting=setting))
    build.add(Lint(t_s=build.t, code="something_new", setting="c"))
    build.steps(10).add(Lint(t_s=build.t, code="setting_unknown", setting="a"))
    found = findings(build.steps(20).end())
    assert [(f.code, f.evidence["setting"]) for f in found] == [("setting_unknown", "a"), ("setting_unknown", "b")]


def test_monitor_overhead_says_how_much():
    (found,) = findings(efficiency.monitor_overhead(), "monitor_overhead")
    assert found.severity is Severity.WARNING
    assert found.evidence["hook_ratio"] == pytest.approx(0.03, abs=0.001)
    assert found.evidence["hook_s_per_step"] == pytest.approx(0.0303, rel=0.1)


def test_little_overhead_slow_start_up_and_silence_are_fine():
    assert findings(efficiency.monitor_overhead(0.004)) == []
    build = Build().gpu()
    build.add(Self(t_s=0.1, hook_s=0.0, cpu_s=0.0)).start().add(Self(t_s=build.t, hook_s=5.0, cpu_s=9.0))
    for _ in range(30):  # five seconds of hooks before the first step, next to nothing after it
        build.steps(10).add(Self(t_s=build.t, hook_s=5.0 + 0.001 * build.t, cpu_s=9.0 + 0.01 * build.t))
    assert findings(build.end()) == []


def test_counters_that_restart_are_no_time():
    build = Build().gpu().start()
    for n in range(60):
        build.steps(10).add(Self(t_s=build.t, hook_s=0.001 * (build.t if n < 30 else build.t - 300), cpu_s=None))
    assert findings(build.end()) == []


def test_what_was_muted_and_tuned_in_the_run_is_so_in_its_replay():
    """The header is a trace's first line, at 0 s: a look that was due at the same moment took its place."""
    events = settings.lint("setting_unknown", "overlap_communication")
    assert findings(events, "setting_unknown")
    header = next(e for e in events if isinstance(e, Header))
    muted = [msgspec.structs.replace(e, ignore=["setting_unknown"]) if e is header else e for e in events]
    muted.sort(key=lambda e: 0 if isinstance(e, Header) else 1)
    assert not findings(muted, "setting_unknown")
