"""Alerts that no run can raise about itself: it is dead, it is one of many, or it has nothing to compare with."""

from __future__ import annotations

from trainbudget.catalog.alert_spec import AlertSpec
from trainbudget.catalog.alert_text import PERCENT, look_up, spend
from trainbudget.catalog.gpu_metrics import OOM_FORECAST
from trainbudget.catalog.money_metrics import COST, FINDING_ACTIVE, GPU_SECONDS, PRICE, WASTED_SECONDS
from trainbudget.catalog.recording import (
    FINDING,
    FRESH,
    JOB_COST,
    MEMORY,
    OOM_IN,
    SPEND,
    VANISHED,
    WASTED,
    WASTED_SHARE,
    by,
    fresh,
)
from trainbudget.catalog.run_metrics import CHARGED_GPUS, REPORT_TIME, RUN_STATE, STATES, UP
from trainbudget.catalog.thresholds import FLEET_WASTED_PER_HOUR, OOM_SOON_S, REPORT_AGE_S, WASTED_PER_HOUR, WASTED_RATIO
from trainbudget.findings import Route, Severity

RUN = {"run": "a", "rank": "0"}
#: Of a run that reports for an hour, and of one that is gone after 20 minutes.
ALIVE = {REPORT_TIME.at(**RUN): "0+60x60", CHARGED_GPUS.at(**RUN): "4x60", PRICE.at(**RUN, currency="USD"): "2.5x60"}
DEAD_AFTER_20 = {REPORT_TIME.at(**RUN): "0+60x20 _x40"}


def _wasting(per_minute: float) -> dict[str, str]:
    """Four GPUs, of whose 240 GPU-seconds a minute this many are wasted."""
    return {
        **ALIVE,
        GPU_SECONDS.at(**RUN, bucket="compute"): f"0+{240 - per_minute:g}x60",
        GPU_SECONDS.at(**RUN, bucket="data_wait"): f"0+{per_minute:g}x60",
        WASTED_SECONDS.at(**RUN, bucket="data_wait"): f"0+{per_minute:g}x60",
    }


OOM_SOON = AlertSpec(
    name="TrainbudgetOutOfMemorySoon",
    expr=OOM_SOON_S.below(OOM_IN.name),
    hold="0s",
    severity=Severity.CRITICAL,
    route=Route.PAGE.value,
    summary="{{ $labels.run }}: GPU {{ $labels.gpu }} of rank {{ $labels.rank }} is out of memory in about "
    "{{ $value | humanizeDuration }}.",
    description="Memory grows, or a batch or phase is coming that does not fit."
    + look_up(
        " ",
        f"max by (currency) ({JOB_COST.name}{{run=$RUN}})",
        " has been spent so far; what is not in a checkpoint is lost.",
        currency=True,
    ),
    title="A GPU will be out of memory soon",
    condition="The forecast of running out of memory is nearer than the threshold.",
    runbook="Save a checkpoint now. Look at the Run dashboard: memory that grows at rest is a leak (losses kept "
    "without .item(), lists of outputs); a step up is a longer batch or an evaluation. Then lower the micro-batch or the "
    "sequence length, or stop at the checkpoint and restart with the setting the finding advises.",
    fires={**ALIVE, OOM_FORECAST.at(**RUN, gpu="0"): "2400-30x60"},
    silent={**ALIVE, OOM_FORECAST.at(**RUN, gpu="0"): "7200x60"},
)

WASTE = AlertSpec(
    name="TrainbudgetWaste",
    expr=(
        f"(\n  {WASTED_PER_HOUR.above(by('run, currency', WASTED.name))}\n"
        f"  and on (run) {WASTED_RATIO.above(by('run', WASTED_SHARE.name))}\n)\n"
        f"or (\n  {WASTED_RATIO.above(by('run', WASTED_SHARE.name))}\n  unless on (run) {SPEND.name}\n)"
    ),
    hold="10m",
    severity=Severity.WARNING,
    route=Route.TICKET.value,
    summary='{{ $labels.run }} wastes {{ if $labels.currency }}{{ $value | printf "%.2f" }} {{ $labels.currency }} an hour'
    "{{ else }}{{ $value | humanizePercentage }} of its GPU time{{ end }}"
    + look_up(" (", f"sum({WASTED_SHARE.name}{{run=$RUN}})", " of what it costs)", how=PERCENT)
    + "{{ range query (printf `topk(1, sum by (bucket) ("
    + WASTED_SHARE.name
    + "{run=%q}))` $labels.run) }}, most of it in "
    '{{ . | label "bucket" }}{{ end }}.',
    description="GPU time that bought nothing, over the last ten minutes." + spend(),
    title="A run wastes money",
    condition="More than the threshold share of the GPU time buys nothing, and more than the threshold of money an hour; without "
    "a price the share alone decides.",
    runbook="The bucket names the cause: data_wait is the input pipeline (more loader workers, faster storage, tokenise once), "
    "host_gap is Python between kernels, padding is batches of unequal length, idle is a GPU nobody uses, stall is a hang, "
    "lost are steps that had to be repeated. The Run dashboard shows since when; the findings name the setting to change.",
    fires=_wasting(120),
    silent=_wasting(24),
)

FLEET_WASTE = AlertSpec(
    name="TrainbudgetFleetWaste",
    expr=FLEET_WASTED_PER_HOUR.above(by("currency", WASTED.name)),
    hold="30m",
    severity=Severity.INFO,
    route=Route.WEEKLY.value,
    summary='All runs together waste {{ $value | printf "%.2f" }} {{ $labels.currency }} an hour.',
    description="{{ range query `topk(1, sum by (bucket) (" + WASTED.name + "))` }}The largest cause is "
    '{{ . | label "bucket" }}.{{ end }} See the Fleet dashboard for the worst offenders.',
    title="Many small wastes add up",
    condition="The waste of all runs in one currency exceeds the threshold for half an hour.",
    runbook="Sort the Fleet dashboard's table by waste. One cause in many runs is usually one "
    "shared default (a loader, a launcher).",
    fires=_wasting(120) | {PRICE.at(**RUN, currency="USD"): "250x60"},
    silent=_wasting(120),
    at="55m",
)

RUN_VANISHED = AlertSpec(
    name="TrainbudgetRunVanished",
    expr=VANISHED.name,
    hold="1m",
    severity=Severity.CRITICAL,
    route=Route.TICKET.value,
    summary="{{ $labels.run }} vanished in the middle of its work.",
    description="It was not seen to end, and nothing has been heard of it since. A dead run is not an idle one: its GPUs may "
    "still be reserved and paid for."
    + look_up(" It had spent ", f"max by (currency) (last_over_time({JOB_COST.name}{{run=$RUN}}[{MEMORY}]))", ".", currency=True),
    title="A run vanished mid-way",
    condition="A run whose last word was that it works has not been heard of for five minutes, and it had not done all "
    "its steps.",
    runbook="Look for the process: killed by the host's memory (dmesg: oom-kill), by the scheduler (time limit, preemption), by "
    "a node that is down, or by an exception. Release the GPUs if they are still allocated; restart from the last checkpoint. If "
    "the process lives, the monitor is stuck: see TrainbudgetMonitorStuck. A run without a known number of steps, or one stopped "
    "early on purpose, that is over between two scrapes looks the same.",
    fires={**DEAD_AFTER_20, RUN_STATE.at(**RUN): f"{STATES['training']}x20 _x40"},
    silent={**DEAD_AFTER_20, RUN_STATE.at(**RUN): f"{STATES['training']}x19 {STATES['finished']} _x40"},
)

RUN_FAILED = AlertSpec(
    name="TrainbudgetRunFailed",
    expr=f"{by('run', f'last_over_time({RUN_STATE.at(MEMORY)})', 'max')} == {STATES['failed']}",
    hold="0s",
    severity=Severity.WARNING,
    route=Route.TICKET.value,
    summary="{{ $labels.run }} failed"
    + look_up(" after spending ", f"max by (currency) (last_over_time({JOB_COST.name}{{run=$RUN}}[{MEMORY}]))", "", currency=True)
    + ".",
    description="It ended with an exception. The record's report says where the time went until then.",
    title="A run failed",
    condition="A run was seen to end with an exception within the last hour.",
    runbook="Read the exception in the log and `trainbudget report RUN`: an out-of-memory error has its own finding "
    "with its cause.",
    fires={**DEAD_AFTER_20, RUN_STATE.at(**RUN): f"{STATES['training']}x19 {STATES['failed']} _x40"},
    silent={**DEAD_AFTER_20, RUN_STATE.at(**RUN): f"{STATES['training']}x19 {STATES['stopped']} _x40"},
)

TARGET_DOWN = AlertSpec(
    name="TrainbudgetTargetDown",
    expr=f"{by('job, instance, run', f'last_over_time({UP.at(MEMORY)}) == 1', 'max')}\nand on (job, instance) (up == 0)",
    hold="3m",
    severity=Severity.WARNING,
    route=Route.TICKET.value,
    summary="{{ $labels.run }}: {{ $labels.instance }} cannot be scraped any more.",
    description="Its last word was that the run goes on. Either the process is gone or the network between is.",
    title="A run's exporter cannot be scraped",
    condition="Scraping a target fails that said within the last hour that its run goes on.",
    runbook="If TrainbudgetRunVanished fires too, the run is dead. Otherwise look at firewalls and at the address it listens on: "
    "the default 127.0.0.1 is reachable from its own host only (TRAINBUDGET_LISTEN).",
    fires={
        'up{job="t",instance="h:9837"}': "1x20 0x40",
        UP.at(job="t", instance="h:9837", **RUN): "1x20 _x40",
    },
    silent={
        'up{job="t",instance="h:9837"}': "1x20 0x40",
        UP.at(job="t", instance="h:9837", **RUN): "1x19 0 _x40",
    },
)

MONITOR_STUCK = AlertSpec(
    name="TrainbudgetMonitorStuck",
    expr=(
        f"{REPORT_AGE_S.above(by('run, rank', f'time() - {REPORT_TIME.name}', 'max'))}\n"
        f"and on (run, rank) {FRESH.name} and on (run, rank) ({UP.name} == 1)"
    ),
    hold="1m",
    severity=Severity.WARNING,
    route=Route.TICKET.value,
    summary="{{ $labels.run }} rank {{ $labels.rank }}: its numbers are {{ $value | humanizeDuration }} old.",
    description="The exporter answers, but the thread that makes the reports does not run. Training itself may be fine.",
    title="A monitor is stuck",
    condition="The newest report of a run that goes on is older than the threshold.",
    runbook="A process that is stopped (SIGSTOP, a debugger), a host that swaps, or an extension that never gives the "
    "interpreter back silences the monitor. `py-spy dump --pid PID` shows which. Until it runs again all numbers are old.",
    # Reports stop at minute 42: at minute 45 the last one is 180 s old, neither news nor history.
    fires={**ALIVE, REPORT_TIME.at(**RUN): "0+60x42 2520x20", UP.at(**RUN): "1x60"},
    silent={**ALIVE, UP.at(**RUN): "1x60"},
)

NOTE = AlertSpec(
    name="TrainbudgetNote",
    expr=FINDING.at(severity="info"),
    hold="10m",
    severity=None,
    route=Route.WEEKLY.value,
    summary="{{ $labels.run }}: {{ $labels.code }}.",
    description="An observation that costs little or nothing now; docs/findings.md says what it means and which setting helps."
    + spend(),
    title="An observation",
    condition="A finding of severity info is active.",
    runbook="Nothing is urgent. Read the finding's entry, and change the setting it names before the next run.",
    fires={**ALIVE, FINDING_ACTIVE.at(**RUN, code="input_bound", severity="info"): "1x60"},
    silent={**ALIVE, FINDING_ACTIVE.at(**RUN, code="input_bound", severity="warning"): "1x60"},
)

NO_PRICE = AlertSpec(
    name="TrainbudgetNoPrice",
    expr=f"{by('run', fresh(f'{UP.name} == 1'), 'max')}\nunless on (run) {by('run', COST.name, 'count')}",
    hold="30m",
    severity=Severity.INFO,
    route=Route.WEEKLY.value,
    summary="{{ $labels.run }} has no price: its waste is counted in GPU-hours, not in money.",
    description="Neither a price was given nor could a dated one be found for this machine.",
    title="A run has no price",
    condition="A run goes on for half an hour without any cost.",
    runbook='Give one: `price="2.49 USD/h"` for one GPU and hour, TRAINBUDGET_PRICE, or `price` in trainbudget.toml.',
    fires={REPORT_TIME.at(**RUN): "0+60x60", UP.at(**RUN): "1x60"},
    silent={REPORT_TIME.at(**RUN): "0+60x60", UP.at(**RUN): "1x60", COST.at(**RUN, currency="USD"): "0+1x60"},
)

SERVER_ALERTS: tuple[AlertSpec, ...] = (
    OOM_SOON,
    RUN_VANISHED,
    RUN_FAILED,
    TARGET_DOWN,
    MONITOR_STUCK,
    WASTE,
    FLEET_WASTE,
    NO_PRICE,
    NOTE,
)
