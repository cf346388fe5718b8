"""GPipe, and naive model parallelism: the papers' figures."""

from __future__ import annotations

from drlpp.schedule.actions import Pass
from drlpp.schedule.analysis.weight_versions import weight_versions
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import build_schedule
from drlpp.schedule.timeline import play
from tests.support.schedule_texts import computations, pass_time, passes, written


def test_pipeoptim_figure_1b() -> None:
    """One update a minibatch, and both passes on the same weights."""
    schedule = build_schedule(Pipeline.straight(1, 1, 1, 1), 2, "gpipe", microbatches=4)
    for worker in range(4):
        assert computations(schedule, worker) == written(
            "F0.0 F0.1 F0.2 F0.3 B0.0 B0.1 B0.2 B0.3 U1x4 "
            "F1.0 F1.1 F1.2 F1.3 B1.0 B1.1 B1.2 B1.3 U2x4"
        )
        assert {v.difference for v in weight_versions(schedule, worker).values()} == {0}


def test_pipeoptim_figure_1c_naive() -> None:
    """One minibatch at a time: it is active on one worker at a time."""
    schedule = build_schedule(Pipeline.straight(1, 1, 1, 1), 3, "gpipe")
    assert passes(schedule, 2) == written("F0 B0 F1 B1 F2 B2")
    timed = [t for t in play(schedule, pass_time) if isinstance(t.action, Pass)]
    assert sorted(t.start for t in timed) == list(range(3 * 2 * 4))


def test_microbatches_are_dealt_to_replicas_in_turn() -> None:
    schedule = build_schedule(Pipeline.straight(2, 1), 2, "gpipe", microbatches=3)
    assert computations(schedule, 0) == written("F0.0 F0.2 B0.0 B0.2 U1x3 F1.1 B1.1 U2x3")
    assert computations(schedule, 1) == written("F0.1 B0.1 U1x3 F1.0 F1.2 B1.0 B1.2 U2x3")


def test_a_flush_costs_the_known_bubble() -> None:
    """M microbatches on D stages take (M + D − 1) times a microbatch (forward + backward)."""
    schedule = build_schedule(Pipeline.straight(1, 1, 1, 1), 3, "gpipe", microbatches=4)
    assert max(timed.end for timed in play(schedule, pass_time)) == 3 * (4 + 4 - 1) * 2
