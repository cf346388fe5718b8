"""Schedules as text, and when their passes start."""

from __future__ import annotations

from drlpp.schedule.actions import Action, Backward, Computation, Forward, Pass
from drlpp.schedule.pipeline import Pipeline, StageEdge
from drlpp.schedule.schedule import Schedule
from drlpp.schedule.timeline import play
from tests.support.action_text import LETTERS


def folded(workers: int) -> Pipeline:
    """A chain of two stages on each worker, there and back."""
    there = [(worker,) for worker in range(workers)]
    edges = tuple(StageEdge(k, k + 1) for k in range(2 * workers - 1))
    return Pipeline((*there, *reversed(there)), edges)


def computations(schedule: Schedule, worker: int) -> tuple[Action, ...]:
    """The passes and updates of a worker."""
    return tuple(a for a in schedule.actions[worker] if isinstance(a, Computation))


def starts(
    schedule: Schedule, worker: int, forward: dict[int, float], backward: dict[int, float]
) -> list[tuple[str, float]]:
    """When the passes of ``worker`` start, given the durations on each stage; the rest is free."""

    def seconds_of(by: int, action: Action) -> float:
        stage = schedule.pipeline.stage_of(by)
        if isinstance(action, Forward):
            return forward[stage]
        return backward[stage] if isinstance(action, Backward) else 0.0

    return [
        (f"{LETTERS[type(t.action)]}{t.action.minibatch}", t.start)
        for t in play(schedule, seconds_of)
        if t.worker == worker and isinstance(t.action, Pass)
    ]


def pass_time(worker: int, action: Action) -> float:
    """Every pass takes 1, all else nothing."""
    return float(isinstance(action, Pass))
