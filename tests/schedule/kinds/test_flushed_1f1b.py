"""1F1B with a flush before every update."""

from __future__ import annotations

from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import build_schedule
from drlpp.schedule.timeline import play
from tests.support.schedule_texts import pass_time, passes, written


def test_it_holds_fewer_microbatches_than_gpipe() -> None:
    """PipeDream-Flush and DAPPLE: GPipe's bubble, but D − rank microbatches in flight."""
    pipeline = Pipeline.straight(1, 1, 1, 1)
    flushed = build_schedule(pipeline, 1, "1f1b-flush", microbatches=6)
    assert [passes(flushed, worker) for worker in range(4)] == [
        written("F0.0 F0.1 F0.2 F0.3 B0.0 F0.4 B0.1 F0.5 B0.2 B0.3 B0.4 B0.5"),
        written("F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 F0.4 B0.2 F0.5 B0.3 B0.4 B0.5"),
        written("F0.0 F0.1 B0.0 F0.2 B0.1 F0.3 B0.2 F0.4 B0.3 F0.5 B0.4 B0.5"),
        written("F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 F0.3 B0.3 F0.4 B0.4 F0.5 B0.5"),
    ]
    ends = [
        max(timed.end for timed in play(schedule, pass_time))
        for schedule in (flushed, build_schedule(pipeline, 1, "gpipe", microbatches=6))
    ]
    assert ends == [(6 + 4 - 1) * 2] * 2
