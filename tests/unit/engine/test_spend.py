"""The spend family: budgets, shares, waste, learning, work at risk."""

from __future__ import annotations

import math

import pytest

from trainbudget.events import Bound, Event, Phase, Rank
from trainbudget.findings import Severity
from unit.engine.feeding import fed, findings
from unit.engine.minimal import spend as minimal
from unit.engine.traces import Build, healthy

ABSURD = 9_223_372_036_854_775_807


def one(events, code):
    found = findings(events, code)
    assert len(found) == 1, found
    return found[0]


# --- budgets


def test_cost_is_projected_from_pace_and_price():
    found = one(minimal.cost_over_budget(), "cost_over_budget")
    # 2,000 steps of 1.01 s and 10 s of start-up at 4 USD an hour
    assert found.severity is Severity.WARNING
    assert found.evidence["projected_cost"] == pytest.approx((2000 * 1.01 + 10) * 4 / 3600, rel=0.02)
    assert found.evidence["projected_low"] > found.evidence["budget"] == 1.0
    # the money is gone after 900 s
    assert found.forecast.at_s == pytest.approx(900.0, rel=0.05)
    assert found.forecast.low <= found.forecast.at_s


def test_money_that_is_spent_needs_no_projection():
    events = Build(price=60.0, budget={"cost": 1.0, "steps_total": ABSURD}).gpu().start().steps(100).end("interrupted")
    found = one(events, "cost_over_budget")
    assert found.severity is Severity.CRITICAL
    assert 59.0 <= found.raised_s <= 110.0
    assert found.evidence["projected_cost"] is None


@pytest.mark.parametrize("total", [ABSURD, -1, None])
def test_nothing_is_projected_without_a_total(total):
    budget = {"cost": 1.0, "run_time_s": 600.0} | ({} if total is None else {"steps_total": total})
    events = Build(price=4.0, budget=budget).gpu().start().steps(200).end("interrupted")
    assert findings(events) == []


def test_no_money_without_a_price_and_none_across_currencies():
    assert findings(Build(price=None, budget={"cost": 0.01, "steps_total": 9000}).gpu().start().steps(100).end()) == []
    euros = Build(price=9.0, budget={"cost": 0.01, "currency": "EUR", "steps_total": 9000}).gpu().start().steps(100).end()
    assert findings(euros) == []


def test_a_run_within_its_budget_is_silent():
    events = healthy(steps=300, budget={"cost": 0.25, "run_time_s": 400.0, "steps_total": 300}, price=2.0)
    assert findings(events, "cost_over_budget") == []
    assert findings(events, "time_over_budget") == []


def test_other_ranks_count_and_only_rank_0_speaks():
    def job(rank):
        build = Build(rank=rank, world_size=2, price=10.0, budget={"cost": 1.0, "steps_total": ABSURD}).gpu().start()
        for _ in range(30):
            build.steps(10).add(Rank(t_s=build.t, rank=1 - rank, cost=build.t * 10 / 3600, state="running"))
        return build.end("interrupted")

    found = one(job(0), "cost_over_budget")
    # each GPU alone has spent 1 USD after 360 s; both together after 180 s
    assert 180.0 <= found.raised_s <= 230.0
    assert found.evidence["assumed"] is False
    assert findings(job(1), "cost_over_budget") == []


def test_ranks_nobody_has_heard_of_are_assumed_alike():
    build = Build(world_size=4, price=10.0, budget={"cost": 1.0, "steps_total": ABSURD}).gpu().start().steps(200)
    found = one(build.end("interrupted"), "cost_over_budget")
    assert 90.0 <= found.raised_s <= 140.0
    assert found.evidence["assumed"] is True


def test_the_budget_is_the_jobs_attempts_before_count():
    build = Build(price=4.0, budget={"cost": 1.0, "steps_total": ABSURD}).gpu().start()
    build.moment("resume", step=100, highest_step=100, cost_before=0.95)
    build.step = 100
    found = one(build.steps(100).end("interrupted"), "cost_over_budget")
    assert found.severity is Severity.CRITICAL
    assert found.evidence["cost"] > 1.0


def test_time_over_budget_is_projected_then_critical():
    build = Build(budget={"run_time_s": 300.0, "steps_total": 600}).gpu().start().steps(400)
    found = one(build.end("interrupted"), "time_over_budget")
    assert found.raised_s < 150.0
    assert found.severity is Severity.CRITICAL  # it went on beyond the budget
    assert found.forecast.at_s == pytest.approx(300.0, rel=0.01)


@pytest.mark.parametrize(
    ("source", "severity", "words"), [("given", Severity.CRITICAL, "are allowed"), ("plan", Severity.WARNING, "were planned")]
)
def test_what_a_plan_has_reckoned_is_no_allowance(source, severity, words):
    """A plan made beside the run (plan="auto") is an expectation: it never pages anybody by its own."""
    budget = {"cost": Bound(value=1.0, source=source), "run_time_s": Bound(value=60.0, source=source), "steps_total": ABSURD}
    events = Build(price=60.0, budget=budget).gpu().start().steps(100).end("interrupted")
    for code in ("cost_over_budget", "time_over_budget"):
        found = one(events, code)
        assert found.severity is severity
        assert words in found.summary


def test_skipped_data_of_a_resume_is_part_of_the_time_and_no_surprise():
    build = Build(budget={"run_time_s": 1200.0, "steps_total": 1000}).gpu().start(310.0)
    build.moment("resume", step=400, highest_step=400)
    build.step = 400
    assert findings(build.steps(300).end("interrupted"), "time_over_budget") == []


# --- shares


def test_eval_share_after_the_second_evaluation():
    found = one(minimal.eval_share(), "eval_share")
    assert found.evidence["share_ratio"] == pytest.approx(40 / 141, abs=0.01)
    assert 280.0 <= found.raised_s <= 300.0
    assert found.evidence["cost"] == pytest.approx(found.evidence["gpu_seconds"] * 2 / 3600)


@pytest.mark.parametrize(
    "events",
    [
        minimal.eval_share(eval_s=15.0),  # 13 %
        minimal.eval_share(evaluations=1),
        minimal.eval_share(eval_s=5.0, every=15, evaluations=3),  # a quarter, of nothing
        minimal.save_share(save_s=4.0),
        minimal.save_share(save_s=30.0, saves=1),
        minimal.log_share(log_s=0.3),
    ],
)
def test_shares_that_are_fine(events):
    assert [f.code for f in findings(events)] == []


def saving(*seconds: float) -> list:
    build = Build().gpu().start()
    for save_s in seconds:
        build.steps(200).phase("save", save_s)
    return build.steps(40).end()


def test_a_first_save_that_takes_long_is_no_habit():
    assert findings(saving(200.0, 3.0, 3.0, 3.0), "save_share") == []


def test_one_upload_that_took_long_does_not_hide_the_others():
    assert one(saving(20.0, 20.0, 200.0, 20.0), "save_share").cleared_s is None


def test_a_long_save_that_comes_again_is_a_habit():
    assert one(saving(3.0, 100.0, 3.0, 100.0), "save_share")


def test_planned_evaluation_is_no_finding():
    events = Build(budget={"eval_time_s": 200.0, "steps_total": 300}).gpu().start()
    for _ in range(3):
        events.steps(100).phase("eval", 40.0)
    assert findings(events.end(), "eval_share") == []


def test_sanity_checks_and_what_lies_before_the_first_step_do_not_count():
    build = Build().gpu().phase("sanity", 100.0).start().phase("eval", 100.0)
    build.steps(100).phase("eval", 10.0).steps(100).phase("eval", 10.0)
    assert findings(build.end(), "eval_share") == []


def test_a_phase_inside_another_has_its_own_seconds_only():
    """Saving inside evaluation is saving: 10 % evaluation, 16 % saving."""
    build = Build().gpu().start()
    for _ in range(3):
        build.steps(100)
        begin = build.t
        build.phase("save", 22.0).wait(14.0)
        build.add(Phase(t_s=build.t, phase="eval", start_s=begin))
    events = build.end()
    assert findings(events, "eval_share") == []
    assert one(events, "save_share").evidence["share_ratio"] == pytest.approx(22 / 137, abs=0.01)


# --- waste


def test_wasted_spend_names_the_largest_bucket():
    found = one(minimal.wasted_spend(), "wasted_spend")
    assert next(iter(found.evidence["buckets"])) == "other"
    assert found.evidence["waste_ratio"] == pytest.approx(50 / 110, abs=0.03)
    assert found.evidence["gpu_seconds"] >= 3600.0


def test_waste_that_another_finding_explains_is_said_once():
    build = Build(sample_period_s=10.0, host_period_s=60.0).gpu().start()
    build.reading[0]["utilization_ratio"] = 0.3
    build.host["loader_workers"] = 0
    codes = [f.code for f in findings(build.steps(400, 10.0, wait_s=25.0).end())]
    assert "input_bound" in codes
    assert "wasted_spend" not in codes


# --- learning


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_loss_that_is_no_number(bad):
    found = one(minimal.nothing_learned(bad), "nothing_learned")
    assert found.severity is Severity.CRITICAL
    assert found.evidence["what"] == "loss_not_finite"
    assert found.evidence["since_step"] == 60
    assert found.evidence["first_loss"] is None


def test_a_broken_batch_and_a_loss_scaler_are_not_the_end():
    broken = Build().gpu().start().steps(200, loss=lambda n: math.nan if n in (50, 51, 120) else 2.0)
    assert findings(broken.end(), "nothing_learned") == []
    scaler = Build().gpu().start().steps(200, fields=lambda n: {"grad_norm": math.inf if n < 17 else 1.0})
    assert findings(scaler.end(), "nothing_learned") == []
    skipped = Build().gpu().start().steps(200, fields=lambda n: {"grad_norm": math.inf, "skipped": True} if n < 60 else {})
    assert findings(skipped.end(), "nothing_learned") == []


def test_a_hidden_nan_shows_in_the_gradient():
    build = Build().gpu().start().steps(100, loss=1.7, fields=lambda n: {"grad_norm": math.nan if n > 40 else 1.0})
    found = one(build.end(), "nothing_learned")
    assert found.evidence["what"] == "gradient_not_finite"
    assert found.evidence["since_step"] == 41


def long_run(loss, **fields):
    build = Build(sample_period_s=30.0, host_period_s=300.0, framework="loop").gpu().start()
    return build.steps(1500, 4.0, loss=loss, fields=(lambda n: fields) if fields else None).end()


def wobble(n):
    return 0.3 * math.sin(12.9898 * n) * math.cos(4.1414 * n)


def test_a_flat_loss_is_information():
    found = one(long_run(lambda n: 2.5 + wobble(n)), "nothing_learned")
    assert found.severity is Severity.INFO
    assert found.evidence["what"] == "flat_loss"


def test_a_constant_loss_without_gradients_is_a_warning():
    found = one(long_run(0.6931, grad_norm=0.0), "nothing_learned")
    assert found.severity is Severity.WARNING
    assert found.evidence["what"] == "constant_loss"


def test_a_loss_that_comes_down_slowly_and_a_reward_are_silent():
    assert findings(long_run(lambda n: 2.5 / n**0.05 + wobble(n)), "nothing_learned") == []
    assert findings(long_run(lambda n: 0.02 * wobble(n)), "nothing_learned") == []
    assert findings(long_run(lambda n: None), "nothing_learned") == []


# --- work at risk


def test_unsaved_work_says_what_would_be_lost():
    found = one(minimal.unsaved_work(), "unsaved_work")
    assert found.evidence["at_risk_s"] == pytest.approx(21600.0, abs=120.0)
    assert found.evidence["cost"] == pytest.approx(12.0, rel=0.01)


def test_on_a_spot_instance_an_hour_is_long():
    found = one(minimal.unsaved_work(spot=True, hours=1.2), "unsaved_work")
    assert found.evidence["spot"] is True
    assert findings(minimal.unsaved_work(spot=False, hours=1.2)) == []


def test_saves_clear_it_and_unseen_saves_are_unknown():
    build = Build(sample_period_s=30.0, host_period_s=300.0).gpu().start()
    for _ in range(4):
        build.steps(240, 30.0).phase("save", 60.0)
    assert findings(build.end(), "unsaved_work") == []
    loop = Build(framework="loop", sample_period_s=30.0, host_period_s=300.0).gpu().start().steps(800, 30.0).end()
    assert findings(loop, "unsaved_work") == []


def test_other_facts_do_not_disturb():
    engine = fed([*healthy()[:-1], Event(t_s=400.0, event="resume", detail={"cost_before": "much"})])
    assert engine.findings == ()


def test_a_total_of_steps_that_nobody_meant_projects_nothing():
    build = Build(price=4.0, budget={"cost": 1.0, "run_time_s": 600.0, "steps_total": 900_000_000}).gpu().start()
    assert findings(build.steps(200).end("interrupted")) == []


def test_a_notebooks_pauses_are_no_wasted_spend():
    def cells(interactive):
        build = Build(interactive=interactive, sample_period_s=30.0, host_period_s=300.0)
        for index in range(4):
            build.gpu(index)
        for _ in range(3):
            build.start().steps(60).moment("train_end")
            for reading in build.reading.values():
                reading.update(utilization_ratio=0.0)
            build.wait(560.0)
            for reading in build.reading.values():
                reading.update(utilization_ratio=0.95)
        return build.end()

    assert "wasted_spend" in [f.code for f in findings(cells(False))]
    assert "wasted_spend" not in [f.code for f in findings(cells(True))]


@pytest.mark.parametrize(("planned_s", "raised"), [(30.0, False), (15.0, True)])
def test_gaps_inside_steps_as_quick_as_planned_are_no_waste(planned_s, raised):
    build = Build(sample_period_s=10.0, host_period_s=60.0, budget={"step_time_s": planned_s, "steps_total": 300})
    build.host.clear()  # nobody knows whether the host is busy: nothing else explains the gaps
    build.gpu().reading[0]["utilization_ratio"] = None
    events = build.start().steps(300, 30.0, gpu_busy_s=12.0).end()
    codes = {f.code for f in findings(events, ignore=("launch_bound", "step_over_budget"))}
    assert ("wasted_spend" in codes) is raised
