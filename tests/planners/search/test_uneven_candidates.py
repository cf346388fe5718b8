"""Depths of links and recomputation of stages are searched one by one, where one is not enough."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drlpp.costs.memory import MemoryModel
from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.plan import Plan
from drlpp.planners import PlanningProblem, best_plan, simulated
from drlpp.planners.search import Judge, Limits, Space, Vary, search
from drlpp.schedule.method import Method
from drlpp.schedule.per_stage import of_links
from drlpp.schedule.pipeline import Pipeline
from drlpp.simulator import simulate
from drlpp.specs.cluster import Cluster, Host, Link
from tests.support.planning.brute_force import every_placement
from tests.support.simulated_chains import chain_workload, straight
from tests.support.strategies.graphs import cluster_of

DEPTH = frozenset({Vary.DEPTH})
VANILLA = Method(policy="vanilla")


def chain_problem(
    forward: list[float], latency: float, method: Method = VANILLA, memory: float | None = None
) -> PlanningProblem:
    """Two accelerators on one host and one on another; between hosts messages take long."""
    workload = chain_workload(forward, forward, [1.0] * (len(forward) - 1))
    cluster = Cluster(
        hosts=(
            Host(name="one", accelerators=2, memory_bytes=memory),
            Host(name="other", accelerators=1, memory_bytes=memory),
        ),
        within_host=Link(bandwidth_bytes_per_second=1e6),
        between_hosts=Link(bandwidth_bytes_per_second=1e6, latency_seconds=latency),
    )
    return PlanningProblem(
        workload.with_method(method), cluster, replicate=False, memory=MemoryModel(method)
    )


def played(problem: PlanningProblem, candidate: Candidate) -> float:
    found = simulate(problem.workload, problem.cluster, candidate.placement, candidate.method)
    return found.seconds_per_minibatch


def uneven_methods(stages: int, most: int) -> list[Method]:
    each = product(range(most + 1), repeat=stages - 1) if stages > 1 else [(0,)]
    return [Method(policy="vanilla", in_flight_per_link=depths) for depths in each]


@pytest.mark.parametrize("most_staleness", [3])
def test_the_best_of_all_depths_of_a_small_problem_is_found(most_staleness: int) -> None:
    given = chain_problem([1.0, 1.0, 1.0, 1.0], latency=1.0)
    best = min(
        played(given, Candidate(placement, method))
        for placement in every_placement(given.workload, 3, replicate=False)
        for method in uneven_methods(len(placement.stages), 4)
        if max(method.in_flight(Pipeline.straight(*[1] * len(placement.stages))))
        <= most_staleness + 1
    )
    judge = Judge(given, Space(VANILLA, DEPTH, most_staleness))
    assert search(judge, [], Limits(), 0)[0].seconds_per_minibatch == pytest.approx(best, rel=1e-9)


def memory_problem() -> tuple[PlanningProblem, Method]:
    """The first stage has time to compute again what it has no room for; the second does not."""
    method = Method(policy="vanilla")
    given = chain_problem([1.0, 2.0, 1.0], latency=0.0, method=method)
    workload = replace(given.workload, kept_bytes=numpy.array([10.0, 10.0, 10.0]))
    # By stage, three, two and one of ten bytes are in flight, beside some weights and messages.
    needed = max(
        simulate(workload, given.cluster, straight(3), method, memory=given.memory).memory_bytes
    )
    cluster = given.cluster.with_hosts(
        host.model_copy(update={"memory_bytes": needed - 5}) for host in given.cluster.hosts
    )
    return replace(given, workload=workload, cluster=cluster), method


def test_a_candidate_that_fits_only_if_its_first_stage_recomputes_is_found() -> None:
    given, method = memory_problem()
    judge = Judge(given, Space(method, frozenset({Vary.RECOMPUTE})))
    found = search(judge, [], Limits(judged=2000), 0)[0]
    assert [stage.operators for stage in found.candidate.placement.stages] == [(0,), (1,), (2,)]
    # The last stage's backward follows its forward, so there it makes no difference.
    assert [found.candidate.method.recomputes(stage) for stage in (0, 1)] == [True, False]
    everywhere = judge.exactly(Candidate(straight(3), Method(policy="vanilla", recompute=True)))
    nowhere = judge(Candidate(straight(3), method))
    assert found.seconds_per_minibatch == pytest.approx(4.0)
    assert everywhere == pytest.approx(6.0)
    assert not judge.fits(Candidate(straight(3), method), nowhere)
    # And so is the plan that all of it ends with.
    plan = best_plan(given, judge.space, limits=Limits(judged=500))
    assert [plan.method.recomputes(k) for k in (0, 1)] == [True, False]
    assert judge.problem_of(plan.method).predict(plan.placement).missing_bytes == 0


@given(st.integers(1, 5), st.integers(0, 999), st.booleans())
@settings(max_examples=20)
def test_steps_stay_in_the_space_and_reach_its_lists(stages: int, seed: int, half: bool) -> None:
    method = Method(policy="vanilla", precision="bfloat16") if half else Method(policy="stash")
    space = Space(method, frozenset({Vary.DEPTH, Vary.RECOMPUTE, Vary.MICROBATCHES}))
    draw, known = random.Random(seed), {method}
    for _ in range(200):
        method = space.changed(method, stages, draw)
        assert space.has(method)
        lists = zip(
            (method.in_flight_per_link, method.recompute), (stages - 1, stages), strict=True
        )
        assert all(len(one) == count for one, count in lists if isinstance(one, tuple))
        assert Method.model_validate(method.model_dump()) == method
        known.add(method)
    assert len(known) > 10
    assert any(isinstance(m.in_flight_per_link, tuple) for m in known) == (stages > 2)
    assert any(isinstance(m.recompute, tuple) for m in known) == (stages > 1 and not half)


@given(st.lists(st.integers(0, 4), min_size=2, max_size=2), st.booleans())
def test_the_rule_knows_the_memory_of_every_list(depths: list[int], first: bool) -> None:
    """The array rule of searches misses what the prediction misses."""
    given, _ = memory_problem()
    judge = Judge(given, Space(VANILLA, frozenset({Vary.DEPTH, Vary.RECOMPUTE})))
    values = {"in_flight_per_link": depths, "recompute": [first, False, not first]}
    method = Method.model_validate({"policy": "vanilla", **values})
    candidate = Candidate(straight(3), method)
    prediction = judge.problem_of(method).predict(candidate.placement)
    fits = judge.fits(candidate, judge(candidate))
    assert fits == (prediction.missing_bytes == 0)
    assert [stage.in_flight for stage in prediction.stages] == [
        1 + sum(1 + n for n in of_links(method.in_flight_per_link, 3)[k:]) for k in range(3)
    ]


def test_the_smallest_depth_that_is_about_as_fast_and_possible_is_planned() -> None:
    """A round trip of 4 T in an interval of T takes four: NOAM's two, and two for the link."""
    workload = chain_workload([1, 1, 1], [2, 2, 2], [3, 3])

    def planned(bandwidth: float = 1.0, memory: float | None = None, **options: object) -> Plan:
        cluster = cluster_of(3, bandwidth).with_hosts(
            host.model_copy(update={"memory_bytes": memory}) for host in cluster_of(3).hosts
        )
        method = Method.model_validate(options)
        given = PlanningProblem(workload, cluster)
        return simulated(given, Space(method), Plan(straight(3)))

    # The second stage sends 3 s forward and 3 s back, which one more for each link all but hides.
    slow = planned()
    assert slow.method.in_flight_per_link == 1
    assert slow.seconds_per_minibatch == pytest.approx(6.0, rel=0.01)
    assert planned(bandwidth=1e6).method.in_flight_per_link == 0
    # The second has 4 bytes of weights, 24 of messages, and one for each of 2 or 3 in flight.
    assert planned(memory=4 + 24 + 2).method.in_flight_per_link == 0
    with pytest.raises(InvalidInput, match="misses 1 bytes of memory"):
        planned(memory=4 + 24 + 1)
    assert planned(policy="2bw", accumulate=4).method.in_flight_per_link == 0
