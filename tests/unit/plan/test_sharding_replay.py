"""State machines of the sharding strategies on a handmade two-unit model: exact bytes of each mechanism. No torch."""

from __future__ import annotations

from typing import Any

import pytest

from trainbudget.errors import ConfigError
from trainbudget.plan.ledger import Ledger
from trainbudget.plan.sharding.ddp import bucket_sizes
from trainbudget.plan.sharding.replay import replay_sharded, strategy_of
from trainbudget.plan.tracing.trace import Category, Kind, Parameter, Phase, Trace
from trainbudget.plan.train_spec import TrainSpec

ELEMENTS = 1024 * 1024  # of each of three parameters: the root's and one a unit
MIB = 1024 * 1024


def parameter(index: int, unit: int) -> Parameter:
    return Parameter(
        name=f"w{index}",
        shape=(1024, 1024),
        elements=ELEMENTS,
        item_bytes=2,
        trainable=True,
        storage=index,
        unit=unit,
        graded=True,
    )


def events() -> list[tuple[int, int, int, int]]:
    """Forward through two units and the root around them, backward in reverse, a bf16 gradient for each parameter."""
    found: list[tuple[int, int, int, int]] = [(Kind.MALLOC, i, 2 * ELEMENTS, Category.PARAMETERS) for i in range(3)]
    found += [(Kind.STEP, 0, 0, 0), (Kind.PHASE, Phase.FORWARD, 0, 0), (Kind.UNIT_PRE_FORWARD, 0, 0, 0)]
    for unit in (1, 2):
        found += [
            (Kind.UNIT_PRE_FORWARD, unit, 0, 0),
            (Kind.MALLOC, 10 + unit, MIB, Category.ACTIVATIONS),
            (Kind.UNIT_POST_FORWARD, unit, 0, 0),
        ]
    found += [(Kind.UNIT_POST_FORWARD, 0, 0, 0), (Kind.PHASE, Phase.BACKWARD, 0, 0), (Kind.UNIT_PRE_BACKWARD, 0, 0, 0)]
    for unit in (2, 1):
        found += [
            (Kind.UNIT_PRE_BACKWARD, unit, 0, 0),
            (Kind.MALLOC, 20 + unit, 2 * ELEMENTS, Category.TEMPORARIES),
            (Kind.GRADIENT, 20 + unit, unit, 0),
            (Kind.FREE, 10 + unit, 0, 0),
            (Kind.UNIT_POST_BACKWARD, unit, 0, 0),
        ]
    found += [
        (Kind.MALLOC, 20, 2 * ELEMENTS, Category.TEMPORARIES),
        (Kind.GRADIENT, 20, 0, 0),
        (Kind.BACKWARD_END, 0, 0, 0),
        (Kind.PHASE, Phase.OPTIMIZER, 0, 0),
    ]
    return found


def ledger_of(strategy: str, world: int = 4, *, accumulation: int = 1, **options: Any) -> Ledger:
    spec = TrainSpec(
        strategy=strategy,  # type: ignore[arg-type]
        world_size=world,
        precision="bf16",
        strategy_options=options,
        gradient_accumulation=accumulation,
    )
    parameters = [parameter(i, i) for i in range(3)]
    trace = Trace(events=events(), parameters=parameters, units=["model", "a", "b"], spec=spec, optimizer_scratch="fused")
    return replay_sharded(trace, cublas_bytes=0, exact=True)


def peak_mib(ledger: Ledger, phase: Phase) -> float:
    return ledger.phase_peaks[phase] / MIB


def test_fsdp2_forward_holds_the_root_a_unit_and_two_gathers() -> None:
    """fp32 shards 3 and states 6; root 2; unit 2's copy 2 and gather 2, unit 1's gather 2, activation 1."""
    assert peak_mib(ledger_of("fsdp2"), Phase.FORWARD) == 3 + 6 + 2 + 2 + 2 + 2 + 1


def test_fsdp2_without_resharding_keeps_units_for_the_backward() -> None:
    assert peak_mib(ledger_of("fsdp2", reshard_after_forward=False), Phase.FORWARD) == 3 + 6 + 2 + 2 + 2 + 2 + 2 + 1


def test_fsdp1_gathers_in_place() -> None:
    """No copy-out and the cast shard is gone before the unit runs: root 2, unit 2, both activations."""
    assert peak_mib(ledger_of("fsdp"), Phase.FORWARD) == 3 + 6 + 2 + 2 + 2


def test_accumulation_without_sync_keeps_whole_gradients() -> None:
    once, often = ledger_of("fsdp"), ledger_of("fsdp", accumulation=4)
    assert peak_mib(often, Phase.FORWARD) - peak_mib(once, Phase.FORWARD) == 3 * 2
    synced = ledger_of("fsdp", accumulation=4, sync_each_micro_step=True)
    assert peak_mib(synced, Phase.FORWARD) == peak_mib(once, Phase.FORWARD)


def test_zero_stages_hold_what_they_do_not_shard() -> None:
    """bf16 parameters 6; master and two states 3 x 12/4; activations 2."""
    for strategy in ("zero1", "zero2"):
        assert peak_mib(ledger_of(strategy, reduce_bucket_size=1024), Phase.FORWARD) == 6 + 9 + 2


def test_zero_buckets_count_elements_and_double_with_overlap() -> None:
    plain = peak_mib(ledger_of("zero2", reduce_bucket_size=16 * MIB), Phase.BACKWARD)
    overlapped = peak_mib(ledger_of("zero2", reduce_bucket_size=16 * MIB, overlap_comm=True), Phase.BACKWARD)
    assert overlapped - plain == 32


def test_zero3_keeps_a_small_model_gathered_between_forward_and_backward() -> None:
    small = ledger_of("zero3", reduce_bucket_size=1024)
    strict = ledger_of(
        "zero3", reduce_bucket_size=1024, stage3_max_reuse_distance=0, stage3_max_live_parameters=0, stage3_prefetch_bucket_size=0
    )
    assert peak_mib(small, Phase.FORWARD) - peak_mib(strict, Phase.FORWARD) >= 2


def test_zero1_keeps_every_gradient_and_its_bucket_between_micro_steps() -> None:
    once, often = (ledger_of("zero1", accumulation=a, reduce_bucket_size=1024) for a in (1, 4))
    assert peak_mib(often, Phase.FORWARD) - peak_mib(once, Phase.FORWARD) == 3 * 2 + 2 / 1024


def test_zero2_keeps_its_partition_of_earlier_micro_steps_as_whole_parameters() -> None:
    """Three quarters of one parameter are rank 0's, its whole gradient is kept."""
    once, often = (ledger_of("zero2", accumulation=a, reduce_bucket_size=1024) for a in (1, 4))
    assert peak_mib(often, Phase.FORWARD) - peak_mib(once, Phase.FORWARD) == 2


def test_zero2_adds_into_an_fp32_partition_in_place() -> None:
    often = ledger_of("zero2", accumulation=4, reduce_bucket_size=1024, grad_accum_dtype="fp32")
    assert peak_mib(often, Phase.FORWARD) == 6 + 9 + 2 + 3


def test_zero2_flattens_a_bucket_of_two_ranks_once_more() -> None:
    """Parameters 6, master and states 18, the bucket 8; all three gradients are in it when it is reduced, flattened: 6."""
    assert peak_mib(ledger_of("zero2", 2, reduce_bucket_size=4 * ELEMENTS), Phase.BACKWARD) == 6 + 18 + 8 + 6


def test_zero3_releases_each_module_when_it_may_keep_nothing() -> None:
    """Shards 1.5, master 3, states 6, gradient partition 1.5, bucket; the root's parameter, one unit's, both activations."""
    strict = ledger_of(
        "zero3", reduce_bucket_size=1024, stage3_max_reuse_distance=0, stage3_max_live_parameters=0, stage3_prefetch_bucket_size=0
    )
    assert peak_mib(strict, Phase.FORWARD) == 1.5 + 3 + 6 + 1.5 + 2 / 1024 + 2 + 2 + 2


def test_zero3_holds_what_it_fetched_together_twice_until_the_last_is_used() -> None:
    """The root's forward fetches both units at once: 4 flat, copied when the first is used, freed when the second is."""
    ledger = ledger_of("zero3", reduce_bucket_size=1024)
    assert peak_mib(ledger, Phase.FORWARD) == 1.5 + 3 + 6 + 1.5 + 2 / 1024 + 2 + 4 + 4 + 1


def test_copies_of_the_sharded_model_split_it_over_fewer_ranks() -> None:
    for strategy in ("fsdp", "fsdp2"):
        copies, one = ledger_of(strategy, 8, replicas=2, reduce_dtype="fp32"), ledger_of(strategy, 4, reduce_dtype="fp32")
        assert copies.phase_peaks == one.phase_peaks
    with pytest.raises(ConfigError, match="3 replicas"):
        ledger_of("fsdp2", 8, replicas=3)


def test_fsdp2_holds_low_precision_sums_while_copies_are_summed() -> None:
    """The peak is in the first unit's backward, when the second one's bf16 sum (a quarter of 2) is still held."""
    copies, one = ledger_of("fsdp2", 8, replicas=2), ledger_of("fsdp2", 4)
    assert peak_mib(copies, Phase.BACKWARD) - peak_mib(one, Phase.BACKWARD) == 0.5


def test_more_ranks_never_need_more_memory() -> None:
    for strategy in ("fsdp", "fsdp2", "zero1", "zero2", "zero3"):
        peaks = [
            ledger_of(strategy, world, reduce_bucket_size=1024) if "zero" in strategy else ledger_of(strategy, world)
            for world in (2, 4, 8)
        ]
        sizes = [ledger.peak.allocated_bytes for ledger in peaks]
        assert sizes == sorted(sizes, reverse=True)


def test_a_full_state_dict_gathers_one_unit() -> None:
    assert peak_mib(ledger_of("fsdp"), Phase.SAVE) == 3 + 6 + 3 + 4  # shards, states, gradients of the last step, one fp32 unit


def test_ddp_buckets_hold_every_gradient_once() -> None:
    parameters = [parameter(i, 0) for i in range(3)]
    assert bucket_sizes(parameters, TrainSpec(strategy="ddp", world_size=2)) == [2 * MIB, 4 * MIB]


def test_an_option_the_strategy_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="reduce_bucket"):
        strategy_of(TrainSpec(strategy="fsdp", world_size=2, strategy_options={"reduce_bucket_size": 1}))
