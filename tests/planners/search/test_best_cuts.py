"""Orders to cut, and their best cuts, against every cut of an order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, combinations, pairwise, permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.made_up import random_order, random_placement
from drlpp.costs.stage_cost import Group, StageSeconds
from drlpp.costs.workload import Workload
from drlpp.planners.problem import PlanningProblem
from drlpp.planners.search.best_cuts import best_cuts, narrow_order, taken_by_kind, taken_in_turns
from drlpp.specs.cluster import Cluster, Host, Link, local_cluster
from tests.support.strategies.graphs import chain_of
from tests.support.strategies.problems import check_placement, problems

SEEDS = st.integers(0, 99)


@given(problem=problems(max_operators=9), seed=SEEDS, noise=st.sampled_from([0.0, 0.5]))
def test_an_order_is_topological_and_takes_stages_in_turn(
    problem: PlanningProblem, seed: int, noise: float
) -> None:
    draw = random.Random(seed)
    placement = random_placement(problem, draw)
    order = narrow_order(problem.workload, [s.operators for s in placement.stages], draw, noise)
    assert sorted(order) == list(range(len(problem.workload)))
    at = {operator: position for position, operator in enumerate(order)}
    assert all(at[source] < at[target] for source, target in problem.workload.edges)
    stage_of = placement.stage_of_operator(len(order))
    assert [stage_of[operator] for operator in order] == sorted(stage_of)


def every_cut(
    problem: PlanningProblem, order: list[int], accelerators: list[int], stages: int
) -> Iterator[list[tuple[float, float]]]:
    """Yield seconds and time of the stages of every cut into so many runs."""
    size, count = len(order), len(accelerators)
    for inner, held in product(
        combinations(range(1, size), stages - 1), combinations(range(1, count + 1), stages)
    ):
        parts = [order[begin:end] for begin, end in pairwise([0, *inner, size])]
        borders = list(pairwise([0, *held]))
        if problem.replicate or all(end - begin == 1 for begin, end in borders):
            yield stages_of(problem, parts, accelerators, borders)


def stages_of(
    problem: PlanningProblem,
    parts: Sequence[Sequence[int]],
    accelerators: list[int],
    borders: list[tuple[int, int]],
) -> list[tuple[float, float]]:
    """Return for every stage seconds per minibatch by the rule, and what it adds to its time."""
    found = []
    for number, (part, (begin, end)) in enumerate(zip(parts, borders, strict=True)):
        beside = [accelerators[a] for a in (begin - 1, end) if 0 <= a < len(accelerators)]
        group = Group.of(problem.cluster, tuple(sorted(accelerators[begin:end])), beside)
        work = problem.workload.stage(part, last=number == len(parts) - 1)
        seconds = StageSeconds.of(work, group).total()
        messages = work.incoming_bytes / group.bandwidth
        found.append((float(seconds), float(work.seconds / group.speed + messages)))
    return found


@given(problem=problems(), seed=SEEDS, tightness=st.sampled_from([0.5, 0.8, 1.0, 2.0]))
@settings(max_examples=35)
def test_no_cut_of_an_order_is_quicker_within_the_limit(
    problem: PlanningProblem, seed: int, tightness: float
) -> None:
    draw = random.Random(seed)
    order = random_order(problem.workload, draw)
    accelerators = draw.sample(range(problem.cluster.accelerators), problem.cluster.accelerators)
    whole = stages_of(problem, [order], accelerators, [(0, 1)])
    # Not as slow as any stage, so that no rounding decides.
    limit = tightness * whole[0][0] * 1.0001 + 1e-6
    found = {
        len(state.holders): (state.placement(), through)
        for state, through in best_cuts(
            problem, order, taken_in_turns(problem, accelerators), limit
        )
    }
    for stages in range(1, min(len(order), len(accelerators)) + 1):
        quickest = min(
            (
                sum(time for _, time in cut)
                for cut in every_cut(problem, order, accelerators, stages)
                if max(seconds for seconds, _ in cut) <= limit
            ),
            default=None,
        )
        assert (stages in found) == (quickest is not None)
        if quickest is None:
            continue
        placement, through = found[stages]
        check_placement(problem, placement)
        ends = list(accumulate(len(stage.accelerators) for stage in placement.stages))
        parts = [stage.operators for stage in placement.stages]
        each = stages_of(problem, parts, accelerators, list(pairwise([0, *ends])))
        assert max(seconds for seconds, _ in each) <= limit * (1 + 1e-9)
        assert through == pytest.approx([time for _, time in each])
        assert sum(through) == pytest.approx(quickest)


def test_a_stage_sends_to_its_neighbours_alone() -> None:
    """The first host is slow to reach, which is nothing to the third."""
    link, slow = (Link(bandwidth_bytes_per_second=bandwidth) for bandwidth in (4.0, 0.5))
    hosts = (
        Host(name="slow", accelerators=1, network=slow),
        *(Host(name=name, accelerators=1) for name in ("near", "far")),
    )
    cluster = Cluster(hosts=hosts, within_host=link, between_hosts=link)
    _, profile = chain_of(seconds=[3] * 3, parameter_bytes=[0] * 3, output_bytes=[8] * 3)
    problem = PlanningProblem(Workload.of(profile), cluster, replicate=False)
    found = best_cuts(problem, [0, 1, 2], taken_in_turns(problem, [0, 1, 2]))
    (through,) = (each for state, each in found if len(state.holders) == 3)
    # What comes in: outputs forward, and gradients back.
    assert through == pytest.approx([3 + 8 / 0.5, 3 + 16 / 0.5, 3 + 8 / 4])


SPEEDS = st.lists(st.sampled_from([0.5, 1.0]), min_size=2, max_size=4)


@given(problem=problems(max_operators=5, hosts=1), speeds=SPEEDS, seed=SEEDS)
@settings(max_examples=15)
def test_no_order_of_unlike_accelerators_has_a_faster_slowest_stage(
    problem: PlanningProblem, speeds: list[float], seed: int
) -> None:
    link = problem.cluster.within_host
    problem = replace(problem, cluster=local_cluster(len(speeds), link, speeds))
    turns = taken_by_kind(problem)
    if turns is None:
        assert len(set(speeds)) == 1
        return
    order = random_order(problem.workload, random.Random(seed))
    found = {len(state.holders): state for state, _ in best_cuts(problem, order, turns)}
    everyone = range(problem.cluster.accelerators)
    for stages in range(1, min(len(order), len(everyone)) + 1):
        fastest = min(
            (
                max(seconds for seconds, _ in cut)
                for accelerators in permutations(everyone)
                for cut in every_cut(problem, order, list(accelerators), stages)
            ),
            default=None,
        )
        assert (stages in found) == (fastest is not None)
        if fastest is None:
            continue
        placement = found[stages].placement()
        check_placement(problem, placement)
        held = [accelerator for stage in placement.stages for accelerator in stage.accelerators]
        ends = list(accumulate(len(stage.accelerators) for stage in placement.stages))
        parts = [stage.operators for stage in placement.stages]
        each = stages_of(problem, parts, held, list(pairwise([0, *ends])))
        assert max(seconds for seconds, _ in each) == pytest.approx(fastest)
