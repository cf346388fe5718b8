"""The planners without a formula, what holds for all, and what searches minimise."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.made_up import FAMILIES, generate, random_placement
from drlpp.costs.buckets import SumsLeft
from drlpp.costs.placed_stages import PlacedStages
from drlpp.costs.placement_rule import PlacementRule
from drlpp.costs.profile import Profile
from drlpp.costs.stage_cost import Group, StageSeconds
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement, Stage
from drlpp.planners import PlanningProblem, Space, best_plan
from drlpp.planners.baselines import gpipe
from drlpp.planners.by_rule import by_rule
from drlpp.planners.search import Judge
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Link, local_cluster
from tests.support.planning.brute_force import every_placement
from tests.support.strategies.graphs import chain_of, cluster_of, graphs, profiles, tied_chain
from tests.support.strategies.problems import check_placement, problems


def problem_of(profile: Profile, accelerators: int) -> PlanningProblem:
    return PlanningProblem(Workload.of(profile), cluster_of(accelerators))


@given(data=st.data(), accelerators=st.integers(1, 5))
def test_gpipe_is_the_most_even_split(data: st.DataObject, accelerators: int) -> None:
    graph = data.draw(graphs())
    profile = data.draw(profiles(graph))
    placement = gpipe(problem_of(profile, accelerators)).placement
    placement.validate_for(graph, accelerators)
    stages = min(accelerators, len(graph))
    assert placement.configuration == "-".join(["1"] * stages)

    def seconds(cuts: tuple[int, ...]) -> list[float]:
        ends = [0, *cuts, len(graph)]
        return [sum(profile.seconds[ends[k] : ends[k + 1]]) for k in range(stages)]

    def evenness(cuts: tuple[int, ...]) -> tuple[float, float]:
        return round(max(seconds(cuts)), 9), round(sum(s * s for s in seconds(cuts)), 6)

    cuts = tuple(stage.operators[0] for stage in placement.stages[1:])
    assert [op for stage in placement.stages for op in stage.operators] == list(range(len(graph)))
    assert evenness(cuts) == min(map(evenness, combinations(range(1, len(graph)), stages - 1)))


def test_on_slow_links_weights_that_operators_share_stay_on_one_stage() -> None:
    """Operators 1 and 3 share a weight of 80 bytes, which the even cut behind 2 would copy."""

    def stages(bandwidth: float) -> list[tuple[int, ...]]:
        workload = Workload.of(tied_chain([2, 2, 2, 6], 80, first=1))
        problem = PlanningProblem(workload, cluster_of(2, bandwidth), replicate=False)
        found = best_plan(problem, Space(Method(), frozenset()))
        return [stage.operators for stage in found.placement.stages]

    assert stages(bandwidth=1000.0) == [(0, 1, 2), (3,)]
    assert stages(bandwidth=1.0) == [(0,), (1, 2, 3)]


@given(problem=problems(max_operators=5, max_accelerators=3, hosts=1, divided=True))
@settings(max_examples=20)
def test_a_search_begins_with_the_optimum_of_the_rule(problem: PlanningProblem) -> None:
    """Tensors and weights that several stages read cost more than stages know by themselves."""
    count, workload = problem.cluster.accelerators, problem.workload
    hosts = [host.model_copy(update={"memory_bytes": None}) for host in problem.cluster.hosts]
    cluster = problem.cluster.with_hosts(hosts).with_speeds([1.0] * count)
    problem = replace(problem, cluster=cluster)
    every = every_placement(workload, count, problem.replicate)
    best = min(problem.predict(placement).seconds_per_minibatch for placement in every)
    found = by_rule(problem).placement
    check_placement(problem, found)
    seconds = problem.predict(found).seconds_per_minibatch
    assert seconds >= best * (1 - 1e-9)
    if not workload.ties and all(len(one.members) == 2 for one in workload.transfers):
        assert seconds == pytest.approx(best)


def test_gpipe_folds_where_accelerators_hold_two_stages() -> None:
    graph, profile = chain_of(seconds=[1] * 8, parameter_bytes=[0] * 8, output_bytes=[1] * 8)
    problem = problem_of(profile, 2)
    method = Method(schedule="zb-v", policy="sync", microbatches=4)
    problem = replace(problem, workload=Workload.of(profile, method))
    space = Space(method, frozenset())
    found = best_plan(problem, space, "gpipe")
    assert [stage.operators for stage in found.placement.stages] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert [stage.accelerators for stage in found.placement.stages] == [(0,), (1,), (1,), (0,)]
    found.placement.validate_for(graph, 2)
    assert problem.predict(found.placement).seconds_per_minibatch == pytest.approx(4)
    with pytest.raises(InvalidInput, match="planner pipedream gives every accelerator one stage"):
        best_plan(problem, space, "pipedream")
    with pytest.raises(InvalidInput, match="need two accelerators and four operators at least"):
        best_plan(replace(problem, cluster=problem.cluster.part([0])), space, "gpipe")


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
    placed = PlacedStages(problem.workload, placement)
    groups = PlacementRule(problem.cluster).groups_of(placed.holders)
    assert SumsLeft()(placed, groups) == pytest.approx(busy + 1.5)
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
        working = placed.working_bytes[k]
        work = replace(work, tied_updates=placed.work.tied_updates[k], working_bytes=working)
        others = [a for partner in partners[k] for a in stages[partner].accelerators]
        seconds = StageSeconds.of(work, Group.of(cluster, stage.accelerators, others))
        assert found.compute_seconds == pytest.approx(float(seconds.compute))
        assert found.all_reduce_seconds == pytest.approx(float(seconds.all_reduce))
        assert found.all_reduce_left_seconds == pytest.approx(float(seconds.left))
        assert found.in_flight == in_flight[k]
        needed = problem.memory.stage_bytes(work, in_flight[k], len(stage.accelerators), k)
        assert found.memory_bytes == pytest.approx(float(needed))
