"""The search over whole candidates, against its starts, its constraints and exhaustive search."""

from __future__ import annotations

import math
import pickle
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.made_up import generate, random_placement
from drlpp.costs.memory import MemoryModel
from drlpp.costs.placed_stages import PlacedStages
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput, NothingFits
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.placement import Placement
from drlpp.placement.plan import Plan
from drlpp.planners import PlanningProblem, baseline_plans, best_plan
from drlpp.planners.search import Judge, Limits, Space, Vary, search
from drlpp.schedule.analysis.staleness import samples_factor
from drlpp.schedule.method import Method
from drlpp.simulator import Simulation, simulate
from drlpp.specs.cluster import Cluster, Host, Link, local_cluster
from tests.support.planning.brute_force import every_placement
from tests.support.simulated_chains import chain
from tests.support.strategies.graphs import chain_of

SLOW = Link(bandwidth_bytes_per_second=2.5e8, latency_seconds=5e-5)
SHORT = Limits(judged=100, patience=2, moves=40)
BOTH = frozenset({Vary.DEPTH, Vary.MICROBATCHES})


def problem(operators: int = 10, seed: int = 0, memory: float | None = None) -> PlanningProblem:
    profile = generate("layered", operators, seed)
    cluster = local_cluster(3, SLOW)
    if memory is not None:
        cluster = cluster.with_hosts(
            host.model_copy(update={"memory_bytes": memory}) for host in cluster.hosts
        )
    method = Method()
    return PlanningProblem(Workload.of(profile, method), cluster, memory=MemoryModel(method))


def drawn(problem: PlanningProblem, count: int, seed: int = 0) -> list[Placement]:
    draw = random.Random(seed)
    return [random_placement(problem, draw) for _ in range(count)]


def played(problem: PlanningProblem, candidate: Candidate) -> float:
    workload = problem.workload.with_method(candidate.method)
    return simulate(
        workload, problem.cluster, candidate.placement, candidate.method
    ).seconds_per_minibatch


def test_a_judge_that_has_judged_goes_on_in_another_process() -> None:
    given = problem()
    judge = Judge(given, Space(Method()))
    candidates = [Candidate(placement, Method()) for placement in drawn(given, 4)]
    assert any(len(held) > 1 for one in candidates for held in one.placement.holders)
    found = [(judge.by_rule(one), judge(one)) for one in candidates]
    other: Judge = pickle.loads(pickle.dumps(judge))
    assert [(other.by_rule(one), other(one)) for one in candidates] == found


@given(seed=st.integers(0, 50))
@settings(max_examples=2)
def test_what_is_found_is_no_slower_than_any_start_and_is_its_steady_state(seed: int) -> None:
    given = problem(seed=seed)
    space = Space(Method(), BOTH)
    starts = [
        Candidate(placement, space.methods[(seed + number) % len(space.methods)])
        for number, placement in enumerate(drawn(given, 12, seed))
    ]
    judge = Judge(given, space)
    elites = search(judge, starts, SHORT, seed)
    seconds = [plan.seconds_per_minibatch for plan in elites]
    assert seconds[0] == played(given, elites[0].candidate)
    assert seconds[0] <= min(played(given, start) for start in starts)
    assert seconds == sorted(seconds)
    assert judge.played <= judge.judged
    assert elites == search(Judge(given, space), starts, SHORT, seed)


def test_the_best_of_all_candidates_of_a_small_problem_is_found() -> None:
    given = problem(4)
    space = Space(Method(), frozenset({Vary.DEPTH}))
    best = min(
        played(given, Candidate(placement, method))
        for placement in every_placement(given.workload, 3, replicate=True)
        for method in space.methods
    )
    found = search(Judge(given, space), [], Limits(judged=2_000), 0)[0]
    assert found.seconds_per_minibatch == pytest.approx(best, rel=1e-9)


@given(most=st.integers(0, 4), seed=st.integers(0, 20))
@settings(max_examples=2)
def test_staleness_and_memory_are_kept(most: int, seed: int) -> None:
    free = problem(6, seed)
    space = Space(Method(), BOTH, most_staleness=most)
    found = search(Judge(free, space), [], SHORT, seed)[0]
    graph = generate("layered", 6, seed).graph
    assert max(ExecutionPlan.of(found.candidate, graph, 3).delays) <= most
    judge = Judge(free, Space(Method(), BOTH))
    unlimited = search(judge, [], SHORT, seed)[0]
    needed = max(in_memory(judge, unlimited.candidate).memory_bytes)
    tight = problem(6, seed, memory=0.8 * needed)
    judge = Judge(tight, Space(Method(), BOTH | {Vary.RECOMPUTE}))
    try:
        candidate = search(judge, [unlimited.candidate], SHORT, seed)[0].candidate
    except NothingFits:
        return
    assert in_memory(judge, candidate).without_room(tight.cluster) is None


def in_memory(judge: Judge, candidate: Candidate) -> Simulation:
    given = judge.problem_of(candidate.method)
    placement, method = candidate.placement, candidate.method
    return simulate(given.workload, given.cluster, placement, method, memory=given.memory)


def test_nothing_fits_says_what_is_missing() -> None:
    with pytest.raises(NothingFits, match="misses"):
        search(Judge(problem(6, memory=1000.0), Space(Method())), [], SHORT, 0)


def test_equal_candidates_are_judged_once() -> None:
    given = problem(6)
    judge = Judge(given, Space(Method()))
    one, other = (Candidate(placement, Method()) for placement in drawn(given, 1) * 2)
    assert judge(one) == judge(other)
    assert (judge.judged, judge.played) == (1, 1)
    deeper = Candidate(one.placement, Method(in_flight_per_link=1))
    judge(deeper)
    assert judge.judged == 2


def test_a_candidate_that_the_policy_refuses_or_that_has_no_room_is_infinite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = problem(6)
    space = Space(Method(policy="2bw", accumulate=2), frozenset())
    judge = Judge(replace(given, workload=given.workload.with_method(space.method)), space)
    whole = Placement.from_assignment([0] * 6, (0,))
    placements = [whole, *drawn(given, 30)]
    seconds = [judge(Candidate(placement, space.method)) for placement in placements]
    assert math.inf in seconds
    assert any(map(math.isfinite, seconds))
    # What the simulator counts may be more than the rule's.
    monkeypatch.setattr(Simulation, "without_room", lambda *_: 0)
    assert Judge(given, Space(Method())).exactly(Candidate(whole, Method())) == math.inf


def test_the_planner_is_no_slower_than_the_best_of_all_planners() -> None:
    given = problem(10)
    found = best_plan(given, Space(Method()), limits=SHORT)
    baselines = baseline_plans(given, Space(Method()))
    assert found.seconds_per_minibatch <= baselines[0].seconds_per_minibatch
    assert found.others == baselines
    assert "candidates" in found.note


FLUSHING = Method(schedule="1f1b-flush", policy="sync", microbatches=4)
SCHEDULES = Space(FLUSHING, frozenset({Vary.SCHEDULE}))


class Noting(Judge):
    """A judge that remembers what it was asked."""

    asked: set[Candidate]

    def __call__(self, candidate: Candidate, limit: float = math.inf) -> float:
        self.asked.add(candidate)
        return super().__call__(candidate, limit)

    def by_rule(self, candidate: Candidate, limit: float = math.inf) -> float:
        self.asked.add(candidate)
        return super().by_rule(candidate, limit)


@given(
    family=st.sampled_from(["chain", "layered"]),
    operators=st.integers(2, 9),
    accelerators=st.integers(1, 4),
    seed=st.integers(0, 50),
)
@settings(max_examples=3)
def test_whatever_is_looked_at_can_be_run_and_is_no_faster_than_the_rule(
    family: str, operators: int, accelerators: int, seed: int
) -> None:
    profile = generate(family, operators, seed)
    cluster = local_cluster(accelerators, SLOW)
    memory = MemoryModel(FLUSHING)
    given = PlanningProblem(Workload.of(profile, FLUSHING), cluster, memory=memory)
    judge = Noting(given, SCHEDULES)
    judge.asked = set()
    found = search(judge, [], SHORT, seed)[0]
    folds = {candidate.placement.is_folded for candidate in judge.asked}
    assert (True in folds) == (operators >= 4 and accelerators >= 2)
    rule = Judge(given, SCHEDULES)
    for candidate in judge.asked:
        plan = ExecutionPlan.of(candidate, profile.graph, accelerators)
        assert plan.pipeline.is_folded == (candidate.method.schedule_kind.stages_held == 2)
        if candidate.placement.is_folded:
            assert played(given, candidate) >= rule.by_rule(candidate) * (1 - 1e-9)
    assert found.seconds_per_minibatch == played(given, found.candidate)


def test_two_stages_on_every_accelerator_are_chosen_where_they_wait_less() -> None:
    """Twelve equal operators, and messages that take no time: ZB-V waits for nothing."""
    _, profile = chain_of(seconds=[3] * 12, parameter_bytes=[1] * 12, output_bytes=[1] * 12)
    cluster = local_cluster(3, Link(bandwidth_bytes_per_second=1e12))
    given = PlanningProblem(Workload.of(profile, FLUSHING), cluster, memory=MemoryModel(FLUSHING))
    # Without replicas, which would wait for nobody either.
    given = replace(given, replicate=False)
    apart = Space(FLUSHING, frozenset())
    alone = best_plan(given, apart, limits=SHORT)
    both = best_plan(given, SCHEDULES, limits=SHORT)
    assert both.method.schedule == "zb-v"
    assert both.placement.is_folded
    assert both.seconds_per_minibatch < 0.8 * alone.seconds_per_minibatch


def test_a_search_may_begin_with_two_stages_on_every_accelerator() -> None:
    method = FLUSHING.model_copy(update={"schedule": "zb-v"})
    profile = generate("layered", 9, 3)
    given = PlanningProblem(
        Workload.of(profile, method), local_cluster(3, SLOW), memory=MemoryModel(method)
    )
    fixed = Space(method, frozenset())
    found = best_plan(given, fixed, limits=SHORT)
    assert found.placement.is_folded
    assert found.seconds_per_minibatch <= baseline_plans(given, fixed)[0].seconds_per_minibatch
    alone = Judge(replace(given, cluster=local_cluster(1, SLOW)), Space(method, frozenset()))
    with pytest.raises(InvalidInput, match="two accelerators and four operators"):
        search(alone, [], SHORT, 0)


@pytest.mark.parametrize(
    ("method", "vary", "message"),
    [
        (Method(schedule="gpipe", policy="sync"), "depth", "no in-flight depth"),
        (Method(), "schedule", "there is to be none"),
        (Method(in_flight_per_link=(1, 0)), "depth", "a list of in_flight_per_link or recompute"),
        (Method(recompute=(True, False)), "depth", "a list of in_flight_per_link or recompute"),
    ],
)
def test_what_a_schedule_does_not_have_cannot_vary(method: Method, vary: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Space(method, frozenset({Vary(vary)}))


def test_a_search_finds_what_fits_only_with_another_method() -> None:
    """Without recomputation no planner's placement fits."""
    method = Method()
    profile = chain(*[3] * 6, parameter_bytes=1, output_bytes=100, kept_bytes=1_000_000)
    memory = MemoryModel(method)
    recompute = frozenset({Vary.RECOMPUTE})

    cluster = local_cluster(2, SLOW, memory_bytes=4_000_000)
    given = PlanningProblem(Workload.of(profile, method), cluster, memory=memory)
    with pytest.raises(NothingFits):
        baseline_plans(given, Space(method))
    assert best_plan(given, Space(method, recompute), limits=SHORT).method.recompute
    with pytest.raises(NothingFits):
        best_plan(given, Space(method), limits=SHORT)


def test_dollars_are_saved_by_fewer_and_by_cheaper_accelerators() -> None:
    """Messages take as long as operators: two are faster than one, but not twice as fast."""
    profile = chain(6, 6, 6, 6, output_bytes=6, parameter_bytes=1)
    link = Link(bandwidth_bytes_per_second=1.0)

    def planned(objective: str, *prices: float | None) -> Plan:
        hosts = tuple(
            Host(name=f"h{n}", accelerators=1, price=price) for n, price in enumerate(prices)
        )
        cluster = Cluster(hosts=hosts, within_host=link, between_hosts=link)
        given = PlanningProblem(Workload.of(profile), cluster, replicate=False, objective=objective)
        return best_plan(given, Space(Method(), frozenset()), limits=SHORT)

    fastest = planned("seconds", 2.0, 1.0)
    assert fastest.configuration == "1-1"
    cheapest = planned("dollars", 2.0, 1.0)
    assert cheapest.placement.accelerators == (1,)
    assert cheapest.seconds_per_minibatch == pytest.approx(24)
    with pytest.raises(InvalidInput, match="needs the price of every host"):
        planned("dollars", 2.0, None)


def test_to_a_loss_a_deep_pipeline_is_worth_less() -> None:
    """With slow links the fastest by the minibatch has many in flight, and needs more samples."""
    profile = chain(6, 6, 6, 6, output_bytes=6, parameter_bytes=100)
    cluster = local_cluster(4, Link(bandwidth_bytes_per_second=1.0, latency_seconds=30.0))
    space = Space(Method(), frozenset({Vary.DEPTH}))

    def planned(objective: str) -> tuple[Plan, float]:
        given = PlanningProblem(Workload.of(profile), cluster, replicate=False, objective=objective)
        plan = best_plan(given, space, limits=SHORT)
        pipeline = PlacedStages(given.workload, plan.placement).pipeline
        return plan, plan.seconds_per_minibatch * samples_factor(pipeline, plan.method)

    (fastest, late), (first, to_a_loss) = planned("seconds"), planned("loss")
    assert fastest.seconds_per_minibatch <= first.seconds_per_minibatch
    assert to_a_loss < 0.95 * late
