"""Weights that a part meets, by the papers' formulas, and the line before asynchronous training."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from drlpp.errors import InvalidInput
from drlpp.schedule.actions import MicrobatchId, Update
from drlpp.schedule.analysis.staleness import staleness_text, usual_staleness
from drlpp.schedule.analysis.weight_versions import (
    stage_delay,
    stage_delays,
    steady_delays,
    update_rates,
    weight_uses,
    weight_versions,
)
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline, StageEdge
from drlpp.schedule.schedule import build_schedule
from drlpp.schedule.weight_policies import WeightUse
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.strategies.graphs import depths, pipelines


def test_pipeoptim_figure_1d_and_2_versions_of_the_fifth_minibatch() -> None:
    """Forward with W2, W3, W4, W5 and backward with W5; the paper starts with W1, we with W0."""
    schedule = build_schedule(Pipeline.straight(1, 1, 1, 1), 12)
    fifth = [weight_versions(schedule, worker)[4, 0] for worker in range(4)]
    assert [versions.newest_in_forward + 1 for versions in fifth] == [2, 3, 4, 5]
    assert [versions.newest_in_backward + 1 for versions in fifth] == [5, 5, 5, 5]
    assert [versions.difference for versions in fifth] == [3, 2, 1, 0]


@given(
    pipelines(),
    st.data(),
    st.integers(1, 7),
    st.integers(1, 5),
    st.sampled_from(["1f1b", "1f1b-flush", "gpipe"]),
)
def test_the_steady_difference_is_what_is_counted_in_a_long_schedule(
    pipeline: Pipeline, data: st.DataObject, accumulate: int, microbatches: int, schedule: str
) -> None:
    assume(len(pipeline.workers) < 9)
    if schedule == "1f1b":
        per_link = data.draw(depths(len(pipeline.stages)))
        options = {"in_flight_per_link": per_link, "microbatches": microbatches}
        method = Method.model_validate({**options, "accumulate": accumulate})
    else:
        options = {"schedule": schedule, "policy": "sync", "microbatches": 2}
        method = Method.model_validate({**options, "accumulate": accumulate})
    # Counts repeat after the rounds in which all stages make whole updates.
    length = 2 * max(method.in_flight(pipeline)) * len(pipeline.workers)
    written = method.schedule_for(pipeline, length + 2 * method.minibatches_together(pipeline))
    for stage in range(len(pipeline.stages)):
        assert steady_delays(pipeline, method)[stage] == stage_delay(written, stage)


@given(
    depth=st.integers(1, 6),
    microbatches=st.integers(1, 7),
    per_link=st.integers(0, 2),
    minibatches=st.integers(1, 9),
)
def test_the_difference_of_a_microbatch_follows_from_its_place_in_the_minibatch(
    depth: int, microbatches: int, per_link: int, minibatches: int
) -> None:
    """s = ⌈(d − 1 − j) / M⌉ for number j = 0, 1, … of M, with d in flight; (d − 1) / M on average.

    While the pipeline fills, minibatch b meets min(s, b).
    """
    pipeline = Pipeline.straight(*[1] * depth)
    options = {"microbatches": microbatches, "in_flight_per_link": per_link}
    method = Method.model_validate(options)
    schedule = method.schedule_for(pipeline, minibatches)
    for rank, in_flight in enumerate(method.in_flight(pipeline)):
        assert in_flight == 1 + (1 + per_link) * (depth - 1 - rank)
        versions = weight_versions(schedule, rank)
        for (b, j), met in versions.items():
            assert met.difference == min(b, max(0, -(-(in_flight - 1 - j) // microbatches)))
        if minibatches > in_flight:
            last = [versions[minibatches - 1, j].difference for j in range(microbatches)]
            assert sum(last) == in_flight - 1
            assert max(last) == steady_delays(pipeline, method)[rank]


def _uses(
    pipeline: Pipeline, minibatches: int, **method: object
) -> dict[int, dict[MicrobatchId, WeightUse]]:
    chosen = Method.model_validate(method)
    stage_delays(pipeline, chosen)
    return weight_uses(chosen.schedule_for(pipeline, minibatches), chosen)


@pytest.mark.parametrize("depth", [1, 4, 7])
@pytest.mark.parametrize(
    ("options", "forward", "backward", "stashed"),
    [
        ({"policy": "pipeoptim"}, lambda k, d: d - k - 1, lambda k, d: 0, None),
        # Forward ⌊rank/2⌋ + D − rank − 1, backward ⌊rank/2⌋.
        ({"policy": "spectrain"}, lambda k, d: k // 2 + d - k - 1, lambda k, d: k // 2, None),
        ({"policy": "xpipe"}, lambda k, d: k // 2 + d - k - 1, lambda k, d: k // 2, None),
        # T2 looks back to the forward.
        (
            {"policy": "pipemare", "correction_decay": 0.1},
            lambda k, d: 0,
            lambda k, d: -(d - k - 1),
            None,
        ),
        # Stage l uses w_l^(t−n+l) for minibatch t: here stages and versions count from 0.
        ({"policy": "stash"}, None, None, lambda k, d, t: max(0, t - (d - 1 - k))),
        # All stages use w^(t−n+1).
        ({"policy": "stash-vertical"}, None, None, lambda k, d, t: max(0, t - d + 1)),
    ],
    ids=lambda value: value.get("policy") if isinstance(value, dict) else "",
)
def test_straight_pipelines_have_the_papers_formulas(
    options: dict[str, object], forward: Any, backward: Any, stashed: Any, depth: int
) -> None:
    uses = _uses(Pipeline.straight(*[1] * depth), 3 * depth, **options)
    for rank in range(depth):
        of_rank = [use for _, use in sorted(uses[rank].items())]
        if stashed is not None:
            wanted = [stashed(rank, depth, t) for t in range(3 * depth)]
            assert [use.stashed for use in of_rank] == wanted
            continue
        # Once the pipeline is full.
        assert {use.forward_lead for use in of_rank[depth:]} == {forward(rank, depth)}
        assert {use.backward_lead for use in of_rank[depth:]} == {backward(rank, depth)}


@given(pipelines(), st.integers(1, 12), st.integers(1, 3), st.integers(1, 3))
def test_vertical_sync_uses_no_minibatch_that_the_input_stage_had_not_seen(
    pipeline: Pipeline, minibatches: int, accumulate: int, microbatches: int
) -> None:
    method = Method(policy="stash-vertical", accumulate=accumulate, microbatches=microbatches)
    schedule = method.schedule_for(pipeline, minibatches)
    uses = weight_uses(schedule, method)
    contained = {
        worker: [0, *(a.through for a in actions if isinstance(a, Update))]
        for worker, actions in schedule.actions.items()
    }
    inputs = [k for k in range(len(pipeline.stages)) if not pipeline.incoming(k)]
    for worker, parts in uses.items():
        for part, use in parts.items():
            seen = [
                contained[other][uses[other][part].newest_in_forward]
                for stage in inputs
                for other in pipeline.stages[stage]
                if part in uses[other]
            ]
            assert contained[worker][use.stashed] <= min(seen)
            assert use.stashed <= use.newest_in_forward
            later = contained[worker][use.stashed + 1 : use.newest_in_forward + 1]
            assert all(minibatches_in > min(seen) for minibatches_in in later)


@pytest.mark.parametrize(
    ("depth", "microbatches", "accumulate"), [(4, 1, 4), (4, 4, 1), (4, 2, 2), (1, 1, 1)]
)
def test_2bw_delays_every_minibatch_by_one_update_where_it_is_divided(
    depth: int, microbatches: int, accumulate: int
) -> None:
    options = {"policy": "2bw", "microbatches": microbatches, "accumulate": accumulate}
    uses = _uses(Pipeline.straight(*[1] * depth), 5 * accumulate, **options)
    for rank in range(depth):
        assert len(uses[rank]) == 5 * accumulate * microbatches
        for (minibatch, _), use in uses[rank].items():
            assert use.stashed == max(0, minibatch // accumulate - 1)


def test_what_looks_ahead_counts_updates_of_whole_minibatches() -> None:
    """Four stages: SpecTrain's ⌊rank/2⌋ is of microbatches, and no update of four of them."""
    pipeline = Pipeline.straight(1, 1, 1, 1)
    for microbatches, until_input in ((1, [0, 0, 1, 1]), (2, [0, 0, 0, 0]), (4, [0, 0, 0, 0])):
        options = {"policy": "spectrain", "microbatches": microbatches}
        uses = _uses(pipeline, 12, **options)
        for rank in range(4):
            for j in range(microbatches):
                s = max(0, -(-(3 - rank - j) // microbatches))
                assert uses[rank][9, j].forward_lead == s + until_input[rank]
                assert uses[rank][9, j].backward_lead == until_input[rank]
    uses = _uses(Pipeline.straight(*[1] * 6), 12, policy="spectrain", microbatches=2)
    assert [uses[rank][9, 0].backward_lead for rank in range(6)] == [0, 0, 0, 0, 1, 1]


@given(pipelines(), st.integers(1, 8), st.integers(1, 40), st.integers(0, 2), st.integers(1, 4))
def test_2bw_needs_two_versions_or_says_that_it_cannot(
    pipeline: Pipeline, accumulate: int, minibatches: int, per_link: int, microbatches: int
) -> None:
    method = {"policy": "2bw", "accumulate": accumulate, "in_flight_per_link": per_link}
    method["microbatches"] = microbatches
    try:
        uses = _uses(pipeline, minibatches, **method)
    except InvalidInput:
        in_flight = pipeline.in_flight(per_link)
        flight = max(n * len(w) for n, w in zip(in_flight, pipeline.stages, strict=True))
        assert accumulate * microbatches < flight
        return
    for parts in uses.values():
        for use in parts.values():
            assert use.stashed <= use.newest_in_forward
            assert 0 <= use.newest_in_backward - use.stashed <= 1


def test_counts_on_a_branch_follow_its_own_way_to_the_end() -> None:
    """0 → 1 → 2 → 4 and 0 → 3 → 4: stage 3 waits as long as its branch is short."""
    edges = tuple(StageEdge(a, b) for a, b in [(0, 1), (1, 2), (0, 3), (2, 4), (3, 4)])
    pipeline = Pipeline(((0,), (1,), (2,), (3,), (4,)), edges)
    uses = _uses(pipeline, 12, policy="pipeoptim")
    assert [uses[worker][9, 0].forward_lead for worker in range(5)] == [3, 2, 1, 1, 0]


STRAIGHT = Pipeline.straight(1, 1, 1, 1)
T1 = Method(policy="pipemare", annealing_minibatches=8)


def test_t1_is_pipemares_equation_4() -> None:
    """α_{k,i} = α_{k,base} / τ_i^{p_k}, p_k = 1 − min(k/K, 1), τ = 4, 3, 2, 1."""
    schedule = T1.schedule_for(STRAIGHT, 12)
    assert update_rates(T1.schedule_for(STRAIGHT, 1), 0, T1, [1.0]) == [0.25], "steady, not counted"
    base = [0.1 + 0.01 * k for k in range(12)]
    for rank, delay in enumerate([4, 3, 2, 1]):
        wanted = [base[k] / delay ** (1 - min(k / 8, 1)) for k in range(12)]
        assert update_rates(schedule, rank, T1, base) == pytest.approx(wanted, rel=1e-12)


def test_t1_goes_on_in_the_next_run_and_leaves_synchronous_ones_alone() -> None:
    schedule = T1.schedule_for(STRAIGHT, 4)
    later = update_rates(schedule, 0, T1, [0.5], asynchronous_before=4)
    assert later == pytest.approx([0.5 / 4 ** (1 - k / 8) for k in range(4, 8)])
    flushing = T1.synchronous(STRAIGHT)
    flushed = flushing.schedule_for(STRAIGHT, 4)
    assert update_rates(flushed, 0, flushing, [0.5]) == [0.5] * 4


def test_an_update_of_several_minibatches_takes_the_rate_of_the_last() -> None:
    method = Method(policy="vanilla", accumulate=2)
    schedule = method.schedule_for(Pipeline.straight(3, 1), 6)
    rates = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert update_rates(schedule, 0, method, rates) == [4.0, 5.0]
    assert update_rates(schedule, 3, method, rates) == [2.0, 4.0, 5.0]


FOUR = Pipeline.straight(1, 1, 1, 1)


def test_how_late_gradients_are_is_said_with_its_cost() -> None:
    text = staleness_text(FOUR, Method(), 16) or ""
    assert "on stages 0 to 3 come 3, 2, 1 and 0 updates, which takes about 1.8 times" in text
    assert text.endswith(
        "with microbatches=4 it would be one at most; with schedule=1f1b-flush none, as in plain "
        "PyTorch"
    )
    divided = staleness_text(FOUR, Method(microbatches=4), 16) or ""
    assert "come 1, 1, 1 and 0 updates at most, 0.75, 0.5, 0.25 and 0 on average, " in divided
    # Whatever the schedule has in between: all stages are one late.
    doubled = staleness_text(FOUR, Method(policy="2bw", microbatches=4), 16) or ""
    assert doubled.startswith("gradients are of the weights before the newest, on every stage")
    assert "microbatches" not in (staleness_text(FOUR, Method(), 2) or "")
    flushed = Method(schedule="1f1b-flush", policy="sync", microbatches=4)
    assert staleness_text(FOUR, flushed, 16) is None
    assert staleness_text(Pipeline.straight(1), Method(), 16) is None
    # PipeOptim takes 0.77 more with AdamW; the momentum of NAdam is 0.9 unless one says otherwise.
    for name, options, needed in (
        ("nadam", {}, 1.8),
        ("nadam", {"betas": [0.99, 0.999]}, 1.2),
        ("muon", {}, 1.4),
    ):
        optimizer = OptimizerSpec.parse(name, **options)
        assert f"about {needed} times" in (staleness_text(FOUR, Method(), 16, optimizer) or "")


def test_with_microbatches_nothing_is_usually_staler_than_one() -> None:
    assert [usual_staleness(Method(), count) for count in (1, 2, 4)] == [0, 1, 3]
    assert usual_staleness(Method(microbatches=4), 4) == 1
    assert usual_staleness(Method(microbatches=2), 4) == 2
    assert usual_staleness(Method(schedule="1f1b-flush", policy="sync", microbatches=4), 4) == 0


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1), (2, 1), (1, 1, 3), (3, 2, 1)])
def test_the_microbatches_that_it_names_suffice(shape: tuple[int, ...], accumulate: int) -> None:
    pipeline, method = Pipeline.straight(*shape), Method(accumulate=accumulate)
    text = staleness_text(pipeline, method, 12)
    assert text is not None
    counted = [stage_delay(method.schedule_for(pipeline, 60), stage) for stage in range(len(shape))]
    assert (max(counted) > 1) == ("microbatches" in text)
    for number in re.findall(r"microbatches=(\d+)", text):
        assert 12 % int(number) == 0
        divided = method.model_copy(update={"microbatches": int(number)})
        schedule = divided.schedule_for(pipeline, 20)
        assert max(stage_delay(schedule, stage) for stage in range(len(shape))) == 1
