"""What is believed after measurements, against the costs as they are; the same in processes."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator

import loky
import numpy
import pytest

from benchmarks.made_up import generate, random_placement
from drlpp.costs.workload import Workload
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import LinkUsage
from drlpp.planners.calibration.belief import Belief
from drlpp.planners.calibration.calibration import Calibration, drawn_factors, link_factors
from drlpp.planners.calibration.recalibration import Options, Recalibration
from drlpp.planners.calibration.surrogate import Surrogate
from drlpp.planners.problem import PlanningProblem
from drlpp.planners.search import Limits, Space
from drlpp.planners.side_by_side import side_by_side
from drlpp.schedule.method import Method
from drlpp.simulator import SimulatedCluster
from drlpp.specs.cluster import Link, local_cluster

LINK = Link(bandwidth_bytes_per_second=2.5e8, latency_seconds=5e-5)
DEEPER = Method(in_flight_per_link=1, recompute=True, microbatches=2)


def test_links_are_drawn_around_what_messages_took() -> None:
    cluster = local_cluster(2, LINK)
    usages = [
        LinkUsage(sender=0, receiver=1, bytes_=size, seconds=1e-4 + size / 1e8)
        for size in (1000, 10_000_000, 50_000_000)
    ]
    draw = numpy.random.default_rng(0)
    known, unknown = link_factors(cluster, usages), link_factors(cluster, [])
    assert known[0] == pytest.approx([2.0, 2.5], rel=0.02)
    logs = numpy.log([drawn_factors(*known, draw) for _ in range(200)])
    assert logs.mean(axis=0) == pytest.approx(numpy.log(known[0]), abs=0.02)
    wide = numpy.log([drawn_factors(*unknown, draw) for _ in range(200)])
    assert unknown[0] == pytest.approx([1.0, 1.0])
    assert (wide.std(axis=0) > 5 * logs.std(axis=0)).all()


def test_who_knows_everything_is_sure_and_stops() -> None:
    profile = generate("chain", 8, 0)
    problem = PlanningProblem(Workload.of(profile), local_cluster(3, LINK))
    space = Space(Method())
    told = Surrogate(Calibration(problem).fit(), space)
    unsure = Belief.of([told], [], None, Limits(judged=120), 0)
    assert (unsure.gain, unsure.confidence) == (1.0, 0.0)
    best = min(unsure.candidates, key=told)
    sure = Belief.of([told], [], best, Limits(judged=120), 0)
    # A single draw leaves a doubt, and sixteen a smaller one.
    assert (sure.gain, sure.confidence) == (0.0, pytest.approx(2 / 3))
    surer = Belief.of([told] * 16, [], best, Limits(judged=60), 0)
    assert surer.confidence == pytest.approx(17 / 18)
    assert sure.promising == []
    assert told(sure.others[0]) == told(best)
    slow = Candidate(random_placement(problem, random.Random(1)), Method())
    assert told(slow) > 1.01 * told(best)
    aware = Belief.of([told], [best], slow, Limits(judged=120), 0)
    assert aware.confidence == pytest.approx(1 / 3)
    assert aware.gain == pytest.approx(1 - told(best) / told(slow), rel=1e-3)
    assert aware.promising[0] == best
    assert best not in aware.others


def test_a_search_ends_by_itself_within_sixteen_measurements_and_is_right() -> None:
    profile = generate("chain", 8, 1)
    truth = SimulatedCluster(profile, local_cluster(3, LINK, [1.0, 1.0, 0.5]))
    problem = PlanningProblem(Workload.of(profile), local_cluster(3, LINK))
    found = Recalibration(problem, Space(Method()), Options(evaluations=40, draws=4))
    while len(found.measured) < 16 and (proposals := found.propose(1)):
        found.tell(proposals[0], truth.measure(proposals[0]))
    true = PlanningProblem(Workload.of(profile), truth.cluster)
    told = Surrogate(Calibration(true).fit(), Space(Method()))
    known = Belief.of([told], [], None, Limits(judged=200), 0)
    best = min(told(candidate) for candidate in known.candidates)
    assert found.best(1)[0][1] <= 1.01 * best
    assert 3 <= len(found.measured) <= 16


@pytest.fixture(scope="module")
def two_cores() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("loky.cpu_count", lambda: 2)
        yield
    loky.get_reusable_executor().shutdown(kill_workers=True)


def where(number: int) -> tuple[int, int]:
    return number, os.getpid()


def killed_elsewhere(number: int, here: int) -> int:
    if os.getpid() != here:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.usefixtures("two_cores")
def test_what_is_believed_is_the_same_in_processes() -> None:
    profile = generate("layered", 12, 0)
    truth = SimulatedCluster(profile, local_cluster(3, LINK, [1.0, 1.0, 0.5]))
    problem = PlanningProblem(Workload.of(profile), local_cluster(3, LINK))
    found = Recalibration(problem, Space(Method()), Options(evaluations=20, draws=4))
    (candidate,) = found.propose(1)
    found.tell(candidate, truth.measure(candidate))
    draws = found._draws()
    for incumbent in (None, candidate):
        one, other = (
            Belief.of(draws, [], incumbent, Limits(judged=20), 0, takes_long=takes_long)
            for takes_long in (False, True)
        )
        assert one.candidates == other.candidates
        assert len(one.candidates) > 1
        assert one.ratios.tolist() == other.ratios.tolist()
        assert (one.gain, one.confidence) == (other.gain, other.confidence)


@pytest.mark.usefixtures("two_cores")
def test_in_processes_where_it_is_worth_it_and_in_order() -> None:
    tasks = [(number,) for number in range(8)]
    assert side_by_side(where, tasks, worth_it=False) == [(n, os.getpid()) for n in range(8)]
    found = side_by_side(where, tasks, worth_it=True)
    assert [number for number, _ in found] == list(range(8))
    assert os.getpid() not in {process for _, process in found}
    assert side_by_side(where, [], worth_it=True) == []
    # Where processes are killed this one does it.
    here = [(number, os.getpid()) for number in range(4)]
    assert side_by_side(killed_elsewhere, here, worth_it=True) == [0, 1, 2, 3]
    # And the next have processes again.
    assert os.getpid() not in {
        process for _, process in side_by_side(where, [(0,), (1,)], worth_it=True)
    }
