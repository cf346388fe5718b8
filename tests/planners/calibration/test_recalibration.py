"""Measure, recalibrate, plan again: against the optimum that only the truth tells."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy
import pytest

from benchmarks.made_up import generate, random_placement
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import FailedMeasurement, Measurement
from drlpp.placement.placement import Placement
from drlpp.planners import PlanningProblem, best_plan
from drlpp.planners.calibration.recalibration import Options, Recalibration
from drlpp.planners.calibration.surrogate import DiscrepancyPosterior, Surrogate
from drlpp.planners.search import Limits, Space, Vary
from drlpp.schedule.method import Method
from drlpp.simulator import SimulatedCluster
from drlpp.specs.cluster import Link, local_cluster
from tests.planners.calibration.test_calibration import scaled
from tests.support.simulated_chains import chain

SLOW = Link(bandwidth_bytes_per_second=2.5e8, latency_seconds=5e-5)
DECLARED = Link(bandwidth_bytes_per_second=5e8, latency_seconds=5e-5)


def wrong(profile: Profile, seed: int) -> Profile:
    draw = numpy.random.default_rng(seed)
    return scaled(profile, draw.lognormal(0.0, 0.3, len(profile.operators)).tolist())


def search(
    truth: SimulatedCluster, declared: PlanningProblem, measurements: int, options: Options
) -> Recalibration:
    found = Recalibration(declared, options=options)
    while len(found.measured) < measurements:
        proposals = found.propose(min(4, measurements - len(found.measured)))
        if not proposals:
            break
        for candidate in proposals:
            assert candidate not in found.measured
            plan = ExecutionPlan.of(candidate, truth.graph, truth.accelerators)
            found.tell(candidate, truth.measure(plan))
    return found


@pytest.mark.parametrize(
    ("operators", "accelerators", "measurements", "evaluations", "most"),
    [(10, 3, 8, 40, 60), pytest.param(24, 4, 24, 600, 1500, marks=pytest.mark.slow)],
)
def test_a_wrong_profile_and_a_wrong_link_are_overcome_in_few_measurements(
    operators: int, accelerators: int, measurements: int, evaluations: int, most: int
) -> None:
    profile = generate("blocks", operators, 1)
    truth = SimulatedCluster(profile, local_cluster(accelerators, SLOW))
    cluster = local_cluster(accelerators, DECLARED)
    declared = PlanningProblem(Workload.of(wrong(profile, 0)), cluster)

    told = PlanningProblem(Workload.of(profile), truth.cluster)
    thorough = best_plan(told, Space(Method(), frozenset()), limits=Limits(judged=most))
    options = Options(evaluations=evaluations, draws=min(16, evaluations // 6))
    found = search(truth, declared, measurements, options)
    assert found.best(1)[0][1] <= thorough.seconds_per_minibatch * 1.01


def test_failed_placements_are_not_proposed_again_and_never_best() -> None:
    profile = generate("chain", 10, 0)
    declared = PlanningProblem(Workload.of(profile), local_cluster(3, SLOW))
    found = Recalibration(declared, options=Options(evaluations=20, draws=2))
    failed = set()
    for _ in range(3):
        for candidate in found.propose(2):
            assert candidate not in failed
            failed.add(candidate)
            found.tell(candidate, FailedMeasurement(failure="timeout", reason="it hangs"))
    assert failed
    assert found.best(3) == []


def test_what_another_method_took_says_nothing_of_this_one() -> None:
    profile = generate("chain", 6, 0)
    found = Recalibration(PlanningProblem(Workload.of(profile), local_cluster(3, SLOW)))
    placement = Placement.from_assignment([0, 0, 0, 1, 1, 1], [0, 1, 1])
    other = Candidate(placement, Method(schedule="gpipe", policy="sync", microbatches=2))
    own = Candidate(placement, Method())
    truth = SimulatedCluster(profile, local_cluster(3, SLOW))
    before = found.surrogate(own)
    found.tell(other, truth.measure(other))
    assert (found.measured, found.surrogate(own)) == ({}, before)
    found.tell(own, truth.measure(own))
    assert list(found.measured) == [own]


@pytest.mark.parametrize(("steadiness", "cut_short"), [(0.5, True), (1.0, True), (0.5, False)])
def test_workers_of_what_was_cut_short_tell_only_what_is_steady(
    steadiness: float, cut_short: bool
) -> None:
    profile = generate("chain", 6, 0)
    found = Recalibration(PlanningProblem(Workload.of(profile), local_cluster(3, SLOW)))
    own = Candidate(Placement.from_assignment([0, 0, 0, 1, 1, 1], [0, 1, 1]), Method())
    outcome = SimulatedCluster(wrong(profile, 1), local_cluster(3, SLOW)).measure(own)
    before = found.surrogate.problem.workload.seconds.copy()
    assert isinstance(outcome, Measurement)
    update = {"steadiness": steadiness, "cut_short": cut_short}
    found.tell(own, outcome.model_copy(update=update))
    # Its seconds count in any case.
    assert found.best(1) == [(own, outcome.seconds_per_minibatch)]
    learned = not numpy.allclose(found.surrogate.problem.workload.seconds, before)
    assert learned == (not cut_short or steadiness == 1.0)


def test_it_ends_once_so_many_beliefs_in_a_row_expect_no_gain() -> None:
    confirmations = 2
    profile = generate("chain", 8, 0)
    truth = SimulatedCluster(profile, local_cluster(2, DECLARED))
    declared = PlanningProblem(Workload.of(profile), local_cluster(2, DECLARED))
    options = Options(gain=0.99, confirmations=confirmations, evaluations=20, draws=2)
    found = Recalibration(declared, options=options)
    doubting = confirmations  # the belief after so many measurements expects a gain: anew
    while True:
        found.options = replace(options, gain=0 if len(found.measured) == doubting else 0.99)
        candidates = found.propose(1)
        if not candidates:
            break
        plan = ExecutionPlan.of(candidates[0], truth.graph, truth.accelerators)
        found.tell(candidates[0], truth.measure(plan))
    assert found.settled
    assert len(found.measured) == doubting + confirmations


def test_the_discrepancy_learns_what_shapes_cost() -> None:
    placements = [
        Placement.from_assignment([0, 0, 1, 1], [0, 0, 1, 1]),
        Placement.from_assignment([0, 1, 2, 3], [0, 1, 2, 3]),
        Placement.from_assignment([0, 0, 0, 0], [0, 0, 0, 0]),
    ]
    candidates = [Candidate(placement, Method()) for placement in placements]
    ratios = [(c, 0.05 * (len(c.placement.stages) - 1) + 0.02) for c in candidates]
    learned = DiscrepancyPosterior(ratios).most_probable
    for candidate, ratio in ratios:
        assert numpy.log(learned.factor(candidate)) == pytest.approx(ratio, abs=0.01)
    assert DiscrepancyPosterior([]).most_probable.factor(candidates[0]) == 1.0


def test_what_no_shape_explains_is_a_candidates_own() -> None:
    """Two of one shape that are measured 20% apart are told apart; a third is expected between."""
    slow, fast, unknown = (
        Candidate(Placement.from_assignment([0] * cut + [1] * (4 - cut), [0, 1]), Method())
        for cut in (1, 2, 3)
    )
    posterior = DiscrepancyPosterior([(slow, 0.1), (fast, -0.1)])
    learned = posterior.most_probable
    assert learned.factor(slow) > 1.05
    assert learned.factor(fast) < 0.95
    assert learned.factor(unknown) == pytest.approx(1.0, abs=0.02)
    drawn = [posterior.sample(numpy.random.default_rng(seed)) for seed in range(20)]
    assert all(one.factor(slow) > 1.03 * one.factor(fast) for one in drawn)


def test_a_limit_never_overrates_what_is_slow_nor_hides_what_is_fast() -> None:
    problem = PlanningProblem(Workload.of(generate("layered", 16, 0)), local_cluster(4, SLOW))
    draw = random.Random(0)
    candidates = [Candidate(random_placement(problem, draw), Method()) for _ in range(40)]
    fitted = Recalibration(problem).calibration.fit()
    exact, limited = (Surrogate(fitted, Space(Method(), frozenset())) for _ in range(2))
    limit = sorted(map(exact.exactly, candidates))[5]
    for candidate in candidates:
        seconds, found = exact.exactly(candidate), limited(candidate, limit)
        # Above the limit it is the simulator's word, or something that is above it as well.
        assert found == pytest.approx(seconds, rel=2e-4) or limit < min(found, seconds)


@pytest.mark.parametrize("anew", [False, True])
def test_what_failed_is_infinite_however_a_surrogate_is_asked(anew: bool) -> None:
    problem = PlanningProblem(Workload.of(generate("layered", 16, 0)), local_cluster(4, SLOW))
    fitted = Recalibration(problem).calibration.fit()
    failed, other = (
        Candidate(Placement.from_assignment([0] * cut + [1] * (16 - cut), (0, 1)), Method())
        for cut in (8, 9)
    )
    told = Surrogate(fitted, Space(Method()), failed=[failed])
    told = told.anew() if anew else told
    # Equal accelerators are the same to it.
    elsewhere = Candidate(failed.placement.on((2, 3)), Method())
    for candidate, is_failed in ((failed, True), (elsewhere, True), (other, False)):
        found = (told.by_rule, told, told.exactly, told.known)
        assert [math.isinf(asked(candidate) or 0.0) for asked in found] == [is_failed] * 4


def test_small_changes_of_the_best_keep_the_limits() -> None:
    profile = generate("chain", 10, 1)
    declared = PlanningProblem(Workload.of(profile), local_cluster(4, SLOW))
    space = Space(Method(), frozenset(), most_staleness=1)
    found = Recalibration(declared, space, Options(evaluations=20, draws=2, gain=0.0))
    truth = SimulatedCluster(profile, declared.cluster)
    for _ in range(3):
        for candidate in found.propose(2):
            plan = ExecutionPlan.of(candidate, truth.graph, 4)
            assert max(plan.delays) <= 1
            found.tell(candidate, truth.measure(plan))
    assert len(found.measured) > 2


def test_to_a_loss_what_is_late_is_worth_less_than_its_seconds() -> None:
    """With slow links the fastest by the minibatch has many in flight, and needs more samples."""
    profile = chain(6, 6, 6, 6, output_bytes=6, parameter_bytes=100)
    cluster = local_cluster(4, Link(bandwidth_bytes_per_second=1.0, latency_seconds=30.0))
    declared = PlanningProblem(Workload.of(profile), cluster, objective="loss")
    space = Space(Method(), frozenset({Vary.DEPTH}))
    found = Recalibration(declared, space, Options(evaluations=40, draws=2))
    truth = SimulatedCluster(profile, cluster)
    seconds = {}
    for _ in range(2):
        for candidate in found.propose(1):
            outcome = truth.measure(ExecutionPlan.of(candidate, truth.graph, 4))
            assert isinstance(outcome, Measurement)
            seconds[candidate] = outcome.seconds_per_minibatch
            found.tell(candidate, outcome)
    costs = {one: took * declared.per_second(one) for one, took in seconds.items()}
    assert found.measured == pytest.approx(costs)
    assert all(map(math.isfinite, costs.values())), "replicas, which no table judges"
    cost = found.best(1)[0][1]
    assert cost == min(costs.values())
    late = best_plan(replace(declared, objective="seconds"), space, limits=Limits(judged=100))
    assert cost < 0.95 * late.seconds_per_minibatch * declared.per_second(late.candidate)
