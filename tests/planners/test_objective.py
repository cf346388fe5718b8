"""What searches minimise, against predictions, stages looked at one by one, and what is played."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drlpp.costs.buckets import SumsLeft
from drlpp.costs.placed_stages import PlacedStages
from drlpp.costs.stage_cost import Group, StageSeconds
from drlpp.costs.synthetic_profiles import FAMILIES, generate
from drlpp.costs.workload import Workload
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement, Stage
from drlpp.planners.problem import PlanningProblem
from drlpp.planners.search import Judge, Space
from drlpp.planners.search.moves import random_placement
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Link, local_cluster
from tests.support.strategies.graphs import chain_of, cluster_of
from tests.support.strategies.problems import problems

METHODS = (
    Method(),
    Method(microbatches=2),
    Method(policy="2bw", accumulate=2),
    Method(schedule="1f1b-flush", policy="sync", microbatches=2),
    Method(schedule="zb-h1", policy="sync", microbatches=2),
)


@given(
    family=st.sampled_from(list(FAMILIES)),
    seed=st.integers(0, 200),
    method=st.sampled_from(METHODS),
    bandwidth=st.sampled_from([1e8, 1e9, 1e10]),
    speeds=st.sampled_from([(1.0,) * 4, (1.0, 1.0, 0.5, 0.7)]),
)
@settings(max_examples=20)
def test_nothing_that_is_played_is_below_the_bound(
    family: str, seed: int, method: Method, bandwidth: float, speeds: tuple[float, ...]
) -> None:
    workload = Workload.of(generate(family, 12, seed), method)
    link = Link(bandwidth_bytes_per_second=bandwidth, latency_seconds=1e-5)
    problem = PlanningProblem(workload, local_cluster(4, link, speeds))
    judge = Judge(problem, Space(method, frozenset()))
    draw = random.Random(seed)
    for _ in range(3):
        candidate = Candidate(random_placement(problem, draw), method)
        seconds = judge.exactly(candidate)
        bound = judge.by_rule(candidate)
        assert bound >= problem.predict(candidate.placement).seconds_per_minibatch * (1 - 1e-9)
        if math.isfinite(seconds):
            assert bound <= seconds * (1 + 1e-9)


def test_the_first_bucket_is_not_ready_when_a_backward_begins() -> None:
    """A backward of 8 s; its only bucket is there at its end, and takes 3 s."""
    _, profile = chain_of(seconds=[6, 6], parameter_bytes=[6, 0], output_bytes=[1, 1])
    # Of two replicas each sends all of its bytes once, and 2 in a second.
    problem = PlanningProblem(Workload.of(profile), cluster_of(2, bandwidth=2.0))
    placement = Placement(stages=(Stage(operators=(0, 1), accelerators=(0, 1)),))
    busy = problem.predict(placement).stages[0].compute_seconds
    assert busy == 6.0
    assert SumsLeft(problem.workload, problem.cluster)(placement) == pytest.approx(busy + 1.5)
    judge = Judge(problem, Space(Method()))
    assert judge.exactly(Candidate(placement, Method())) == pytest.approx(busy + 1.5)
    # By the rule the sum hides behind the backward.
    assert problem.predict(placement).seconds_per_minibatch == busy


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
    placed = PlacedStages(workload, placement)
    pipeline = placed.pipeline
    assert [
        {edge.source for edge in pipeline.incoming(k)}
        | {edge.target for edge in pipeline.outgoing(k)}
        for k in range(len(stages))
    ] == partners
    for tied in pipeline.ties:
        for stage in tied:
            partners[stage] |= set(tied) - {stage}
    in_flight = pipeline.in_flight(problem.memory.method.in_flight_per_link)
    for k, (stage, found) in enumerate(zip(stages, prediction.stages, strict=True)):
        work = workload.stage(stage.operators, last=k == last)
        work = replace(work, tied_updates=placed.work.tied_updates[k])
        others = [a for partner in partners[k] for a in stages[partner].accelerators]
        seconds = StageSeconds.of(work, Group.of(cluster, stage.accelerators, others))
        assert found.compute_seconds == pytest.approx(float(seconds.compute))
        assert found.all_reduce_seconds == pytest.approx(float(seconds.all_reduce))
        assert found.all_reduce_left_seconds == pytest.approx(float(seconds.left))
        assert found.in_flight == in_flight[k]
        needed = problem.memory.stage_bytes(work, in_flight[k], len(stage.accelerators), k)
        assert found.memory_bytes == pytest.approx(float(needed))
