"""What replicas wait for their sums: a bound between the rule's and what is played."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drlpp.costs.buckets import SumsLeft
from drlpp.costs.synthetic_profiles import FAMILIES, generate
from drlpp.costs.workload import Workload
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement, Stage
from drlpp.planners.candidates import Judge, Space
from drlpp.planners.problem.objective import AnalyticObjective
from drlpp.planners.problem.problem import PlanningProblem
from drlpp.planners.search.random_placements import random_placement
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Link, local_cluster
from tests.support.strategies.graphs import chain_of, cluster_of, graph_of, profile_of

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


def test_the_last_stage_predicts_nothing_wherever_the_last_operator_stands() -> None:
    graph = graph_of([(0, 1), (0, 2)], parameter_bytes=[2, 2, 2], output_bytes=[1, 1, 1])
    profile = profile_of(graph, [6, 6, 6])
    moving = profile.model_copy(update={"prediction_seconds_per_byte": 0.5})
    placement = Placement(
        stages=(
            Stage(operators=(0, 2), accelerators=(0,)),
            Stage(operators=(1,), accelerators=(1, 2)),
        )
    )
    cluster = cluster_of(3, bandwidth=1e9)
    still, found = (SumsLeft(Workload.of(one), cluster)(placement) for one in (profile, moving))
    assert found == pytest.approx(still) == 3.0


def test_it_says_nothing_of_what_is_not_replicated_or_does_not_overlap() -> None:
    problem = PlanningProblem(Workload.of(generate("chain", 4, 0)), cluster_of(2))
    apart = Placement(
        stages=(
            Stage(operators=(0, 1), accelerators=(0,)),
            Stage(operators=(2, 3), accelerators=(1,)),
        )
    )
    together = Placement(stages=(Stage(operators=(0, 1, 2, 3), accelerators=(0, 1)),))
    assert SumsLeft(problem.workload, problem.cluster)(apart) == 0
    assert SumsLeft(problem.workload, problem.cluster)(together) > 0
    serial = Judge(replace(problem, costs="serial"), Space(Method()))
    rule = AnalyticObjective(serial.problem)(together)
    assert serial.by_rule(Candidate(together, Method())) == rule
