"""Depth searched with the placement and after it: what is compared, and how it is told."""

from __future__ import annotations

import pytest

from benchmarks.in_flight.program import METHOD
from benchmarks.in_flight.together import Row, summary, table_of
from benchmarks.in_flight.together_program import found_by
from drlpp.costs.workload import Workload
from drlpp.planners import PlanningProblem
from drlpp.simulator import simulate
from drlpp.specs.cluster import Link, local_cluster
from tests.support.simulated_chains import chain

SAVES = Row("m", 1e8, ("4 +0", "4 +1", "2-2 +1"), (10, 8, 6), ((10, 10, 8), (12, 10, 9), (9, 9, 9)))
SAME = Row("m", 1e9, ("4 +0", "4 +0", "4 +0"), (5, 5, 5), ((5, 5, 5),))


def test_what_is_saved_is_told_with_what_turns_differ_by() -> None:
    told, same = table_of([SAVES, SAME]).to_dict("records")
    assert told["links"] == "100 Mbit/s"
    assert told["together (simulated)"] == "2-2 +1: 9.00 s (6.00 s)"
    # Of turns 20%, 25% and nothing; simulated 10 against 6.
    assert told["together saves of NOAM (simulated)"] == "20% ± 12% (40%)"
    assert told["of the depth afterwards (simulated)"] == "10% ± 10% (25%)"
    assert same["together saves of NOAM (simulated)"] == "the same"
    assert "NOAM 10% of the time in the median, 0% to 20%" in summary([SAVES, SAME])


def test_three_candidates_are_as_fast_as_is_said() -> None:
    # A message takes as long as a stage.
    link = Link(bandwidth_bytes_per_second=1.0)
    workload = Workload.of(chain(3, 3, 3, 3, output_bytes=3), METHOD)
    problem = PlanningProblem(workload, local_cluster(4, link))
    candidates, seconds = found_by(problem, evaluations=200)
    at_noam, afterwards, together = candidates
    assert at_noam.method.in_flight_per_link == 0
    assert afterwards.placement == at_noam.placement
    for candidate, said in zip(candidates, seconds, strict=True):
        played = simulate(workload, problem.cluster, candidate.placement, candidate.method)
        assert played.seconds_per_minibatch == pytest.approx(said, rel=1e-3)
    assert seconds[1] <= seconds[0] * (1 + 1e-9)
    assert seconds[2] <= seconds[0] * (1 + 1e-9)
    assert together.placement.stages
