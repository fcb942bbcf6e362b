"""Messages through apprise to a webhook: what is told, when it is over, and what is not worth a message."""

from __future__ import annotations

import json

import pytest

from trainbudget.clock import ManualClock
from trainbudget.errors import ConfigError
from trainbudget.events import Header
from trainbudget.findings import Advice, Severity
from unit.sinks.receiver import Receiver, receiving
from unit.sinks.report_samples import finding, report

pytest.importorskip("apprise", reason="the extra `notify` is not installed")

from trainbudget.sinks.notify import NotifySink


def address(receiver: Receiver) -> str:
    return receiver.url.replace("http://", "json://") + "/hook"


def messages(receiver: Receiver, count: int) -> list[dict[str, str]]:
    return [json.loads(call.body) for call in receiver.wait(count)]


def test_a_raised_finding_says_run_severity_cause_money_and_what_to_try() -> None:
    raised = finding(
        "oom_forecast",
        Severity.CRITICAL,
        gpu=0,
        cause="leak",
        summary="out of memory in about 140 steps",
        advice=(Advice(lever="x", setting="per_device_train_batch_size=2"),),
    )
    with receiving() as hook:
        sink = NotifySink(address(hook))
        sink.write(report(), (raised,), ())
        message = messages(hook, 1)[0]
        sink.close()
    assert message["title"] == "llama-lora-7f3a: critical: oom_forecast/leak"
    assert message["message"].splitlines() == [
        "out of memory in about 140 steps",
        "On GPU 0.",
        "This process costs 2.49 USD an hour.",
        "Try per_device_train_batch_size=2.",
    ]
    assert message["type"] == "failure"


def test_a_cleared_finding_is_told_once_it_was_told() -> None:
    with receiving() as hook:
        sink = NotifySink(address(hook))
        sink.write(report(), (finding("input_bound"),), ())
        sink.write(report(), (), (finding("input_bound", cleared_s=650.0), finding("hang", cleared_s=60.0)))
        told = messages(hook, 2)
        sink.close()
        assert len(hook.calls) == 2
    assert told[1]["title"] == "llama-lora-7f3a: input_bound is over"
    assert told[1]["message"].splitlines()[-1] == "It lasted 10.0 minutes."
    assert told[1]["type"] == "success"


def test_observations_are_not_worth_a_message_and_flapping_is_told_once() -> None:
    clock = ManualClock()
    with receiving() as hook:
        sink = NotifySink(address(hook), clock=clock)
        sink.write(report(), (finding("gc_pause", Severity.INFO),), ())
        for _ in range(5):
            sink.write(report(), (finding("input_bound"),), ())
            clock.advance(60.0)
        sink.write(report(), (finding("input_bound", Severity.CRITICAL),), ())
        told = messages(hook, 2)
        sink.close()
        assert len(hook.calls) == 2
    assert [m["type"] for m in told] == ["warning", "failure"]


def test_other_ranks_tell_only_what_happens_to_their_own_device() -> None:
    header = Header(run="big", id="1k", rank=7, world_size=1000)
    common = (finding("hang", Severity.CRITICAL), finding("input_bound"), finding("thermal_throttle", gpu=0))
    with receiving() as hook:
        sink = NotifySink(address(hook))
        sink.write(report(header=header), (*common, finding("gpu_lost", Severity.CRITICAL, gpu=0)), ())
        messages(hook, 1)
        sink.close()
        assert [json.loads(call.body)["title"] for call in hook.calls] == ["big-1k: critical: gpu_lost"]


def test_hostile_text_arrives_as_text() -> None:
    with receiving() as hook:
        sink = NotifySink(address(hook))
        sink.write(report(), (finding("hang", summary='a\ud800"\u2028<b>' + "x" * 10_000),), ())
        text = messages(hook, 1)[0]["message"]
        sink.close()
    assert text.splitlines()[0].startswith('a_"_<b>xxx')
    assert len(text) < 800


def test_a_hook_that_is_down_is_counted() -> None:
    with receiving(status=500) as hook:
        sink = NotifySink(address(hook))
        sink.write(report(), (finding("hang"),), ())
        hook.wait(1)
        sink.close()
    assert sink.errors == 1


def test_an_address_nobody_knows_is_refused_without_showing_it() -> None:
    with pytest.raises(ConfigError, match="kind 'nonsense'") as caught:
        NotifySink("nonsense://token-secret")
    assert "secret" not in str(caught.value)
