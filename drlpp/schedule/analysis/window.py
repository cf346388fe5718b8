"""Which minibatches of a run count: the window that is measured, live or simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from drlpp.schedule.actions import Update
from drlpp.schedule.method import Method
from drlpp.schedule.per_stage import most
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import Schedule

_LONGEST_ROUND = 4096
"""The most minibatches to which a window is extended for the sake of whole rounds of updates.

Without whole rounds it is off by up to the minibatches of one update.
"""


@dataclass(frozen=True)
class Window:
    """Which minibatches of a run are measured: ``length`` of them after ``warm_up`` others.

    ``tail`` more follow, so that the window ends before the pipeline drains. ``step`` is the
    number of minibatches that complete together: with replicated stages, updates come in rounds.
    """

    warm_up: int
    length: int
    tail: int
    step: int

    @property
    def minibatches(self) -> int:
        """The number of minibatches of the whole run."""
        return self.warm_up + self.length + self.tail

    def marks(self, completions: Sequence[float]) -> Sequence[float]:
        """Return the window's begin and the end of every step.

        ``completions`` are the moments when each minibatch of the run was complete.
        """
        return completions[self.warm_up - 1 : self.warm_up + self.length : self.step]

    def later(self) -> Window:
        """Return the window of a longer run that begins where this one ends."""
        return replace(self, warm_up=self.warm_up + self.length)

    @classmethod
    def plan(cls, pipeline: Pipeline, minibatches: int, method: Method) -> Window:
        """Lay a window of at least ``minibatches`` into a run, in whole rounds of updates."""
        together = method.accumulate
        if method.flushes:
            # A first pass takes longer, on a GPU many times as long.
            replicas = max(map(len, pipeline.stages))
            turns = -(-replicas // (method.microbatches * together))
            warm_up = max(2, turns) * together
            return cls(warm_up, _round_up(minibatches, together), tail=0, step=together)
        rounds = method.minibatches_together(pipeline)
        # Minibatches of one update are complete at once: a window of fewer would take no time, or
        # as much as all of them.
        minibatches = max(minibatches, min(rounds, _LONGEST_ROUND))
        step = rounds if together > 1 or rounds <= minibatches else 1
        in_flight = method.in_flight(pipeline)
        flight = method.minibatches_in_flight(pipeline)
        # The forward passes that a stage is ahead of its last backward in the window.
        tail = -(-max(method.parts_in_between(pipeline)) // method.microbatches)
        # Beyond NOAM, gradients pile up before the faster stages while the pipeline fills: until
        # these have caught up, they run faster than the slowest stage.
        times_noam = [
            -(-(deep - 1) // (noam - 1))
            for deep, noam in zip(in_flight, pipeline.in_flight(), strict=True)
            if noam > 1
        ]
        flight *= max([1 + most(method.in_flight_per_link), *times_noam])
        updates = [method.minibatches_of_update(len(replicas)) for replicas in pipeline.stages]
        return cls(
            warm_up=_round_up(max(flight, 4), step),
            # At least one update of every stage is in it.
            length=_round_up(max(minibatches, *updates), step),
            tail=_round_up(tail, step),
            step=step,
        )


def completion_times(schedule: Schedule, ends: Mapping[int, Sequence[float]]) -> list[float]:
    """Return when each minibatch was complete: all stages had performed its update.

    ``ends`` holds when each of a worker's actions ended, in the order of the schedule.
    """
    of_workers = update_times(schedule, ends).values()
    return list(accumulate(map(max, zip(*of_workers, strict=True)), max))


def update_times(schedule: Schedule, ends: Mapping[int, Sequence[float]]) -> dict[int, list[float]]:
    """Return for every worker when it had performed the update that contains each minibatch."""
    found: dict[int, list[float]] = {}
    for worker, actions in schedule.actions.items():
        times = found[worker] = []
        for action, end in zip(actions, ends[worker], strict=True):
            if isinstance(action, Update):
                times += [end] * (action.through - len(times))
    return found


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step
