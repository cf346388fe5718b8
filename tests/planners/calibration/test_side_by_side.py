"""Searches in processes: the same as in one, whatever becomes of the processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import loky
import pytest

from drlpp.costs.synthetic_profiles import generate
from drlpp.costs.workload import Workload
from drlpp.planners.calibration.belief import Belief, side_by_side
from drlpp.planners.calibration.recalibration import Options, Recalibration
from drlpp.planners.problem import PlanningProblem
from drlpp.planners.search import Limits, Space
from drlpp.schedule.method import Method
from drlpp.simulator import SimulatedCluster
from drlpp.specs.cluster import Link, local_cluster

LINK = Link(bandwidth_bytes_per_second=2.5e8, latency_seconds=5e-5)


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("loky.cpu_count", lambda: 2)
    yield
    loky.get_reusable_executor().shutdown(kill_workers=True)


def where(number: int) -> tuple[int, int]:
    return number, os.getpid()


def killed_elsewhere(number: int, here: int) -> int:
    if os.getpid() != here:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_what_is_believed_is_the_same() -> None:
    profile = generate("layered", 12, 0)
    truth = SimulatedCluster(profile, local_cluster(3, LINK, [1.0, 1.0, 0.5]))
    problem = PlanningProblem(Workload.of(profile), local_cluster(3, LINK))
    found = Recalibration(problem, Space(Method()), Options(evaluations=20, draws=4))
    (candidate,) = found.propose(1)
    found.tell(candidate, truth.measure(candidate))
    draws = found._draws(found.surrogate)
    for incumbent in (None, candidate):
        one, other = (
            Belief.of(draws, [], incumbent, Limits(judged=20), 0, takes_long=takes_long)
            for takes_long in (False, True)
        )
        assert one.candidates == other.candidates
        assert len(one.candidates) > 1
        assert one.ratios.tolist() == other.ratios.tolist()
        assert (one.gain, one.confidence) == (other.gain, other.confidence)


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
