"""What searches minimise, against predictions, and these against stages looked at one by one."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drlpp.costs.analytic_model import pipeline_of, predict
from drlpp.costs.message_load import TiedSums
from drlpp.costs.stage_cost import Group, StageSeconds
from drlpp.placement.placement import Placement
from drlpp.planners.problem.objective import AnalyticObjective
from drlpp.planners.problem.problem import PlanningProblem
from drlpp.planners.search.folding import random_folded
from drlpp.planners.search.random_placements import random_placement
from tests.support.strategies.problems import problems


@given(
    problem=problems(max_operators=8, max_accelerators=6, hosts=3, divided=True),
    seed=st.integers(0, 9),
)
def test_it_is_what_predict_says(problem: PlanningProblem, seed: int) -> None:
    check(problem, random_placement(problem, random.Random(seed)))


@given(
    problem=problems(max_operators=9, max_accelerators=4, hosts=2, divided=True),
    seed=st.integers(0, 9),
)
def test_it_is_what_predict_says_of_two_stages_on_an_accelerator(
    problem: PlanningProblem, seed: int
) -> None:
    problem = replace(problem, workload=replace(problem.workload, flushes=True, stages_held=2))
    placement = random_folded(problem, random.Random(seed))
    if placement is not None:
        check(problem, placement)


def check(problem: PlanningProblem, placement: Placement) -> None:
    """Fails unless both forms of the rule say the same."""
    prediction = predict(
        problem.workload, problem.cluster, placement, problem.costs, problem.memory
    )
    objective = AnalyticObjective(problem)
    seconds, missing = objective.seconds_and_missing(placement)
    assert seconds == pytest.approx(prediction.seconds_per_minibatch)
    limits = [
        min(
            (problem.cluster.memory_bytes[a] or float("inf") for a in stage.accelerators),
        )
        for stage in prediction.stages
    ]
    # Of two stages that an accelerator holds, both say what it misses.
    apart = list(zip(prediction.stages, limits, strict=True))[: len(set(placement.accelerators))]
    assert missing == pytest.approx(
        sum(
            max(0.0, -stage.spare_bytes) / limit
            for stage, limit in (
                apart if placement.is_folded else zip(prediction.stages, limits, strict=True)
            )
            if stage.spare_bytes is not None
        )
    )
    assert objective.fits(objective(placement)) == (prediction.missing_bytes == 0)


@given(
    problem=problems(max_operators=8, max_accelerators=6, hosts=3, divided=True),
    seed=st.integers(0, 9),
)
def test_all_stages_at_once_are_what_each_is_by_itself(problem: PlanningProblem, seed: int) -> None:
    placement = random_placement(problem, random.Random(seed))
    workload, cluster = problem.workload, problem.cluster
    prediction = problem.predict(placement)
    stages, last = placement.stages, len(placement.stages) - 1
    stage_of = [*placement.stage_of_operator(len(workload)), last]
    partners: list[set[int]] = [set() for _ in stages]
    for transfer in workload.transfers:
        held = {stage_of[member] for member in transfer.members}
        for reader in held - {stage_of[transfer.members[0]]}:
            partners[reader].add(stage_of[transfer.members[0]])
            partners[stage_of[transfer.members[0]]].add(reader)
    pipeline = pipeline_of(workload, placement)
    assert [
        {edge.source for edge in pipeline.incoming(k)}
        | {edge.target for edge in pipeline.outgoing(k)}
        for k in range(len(stages))
    ] == partners
    for tied in pipeline.ties:
        for stage in tied:
            partners[stage] |= set(tied) - {stage}
    work = workload.stage(stages[0].operators, last=last == 0)
    replicas = [len(stage.accelerators) for stage in stages]
    updates = TiedSums.of(workload, work, stage_of[:-1], replicas).updates
    in_flight = pipeline.in_flight(problem.memory.in_flight_per_link)
    for k, (stage, found) in enumerate(zip(stages, prediction.stages, strict=True)):
        work = workload.stage(stage.operators, last=k == last)
        if problem.costs == "overlapped":
            work = replace(work, tied_updates=updates[k])
        others = [a for partner in partners[k] for a in stages[partner].accelerators]
        seconds = StageSeconds.of(
            work, Group.of(cluster, stage.accelerators, others), problem.costs
        )
        assert found.compute_seconds == pytest.approx(float(seconds.compute))
        assert found.all_reduce_seconds == pytest.approx(float(seconds.all_reduce))
        assert found.all_reduce_left_seconds == pytest.approx(float(seconds.left))
        if problem.costs == "serial":
            assert found.message_seconds == pytest.approx(float(seconds.messages))
        assert found.in_flight == in_flight[k]
        needed = problem.memory.stage_bytes(work, in_flight[k], replicas[k], k)
        assert found.memory_bytes == pytest.approx(float(needed))
