"""The run of a placement as live workers make it: a schedule with a window, and its timeline."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from operator import getitem, itemgetter

from drlpp.schedule.actions import Backward, Forward, Receive, Send
from drlpp.schedule.analysis.window import Window
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import Schedule
from drlpp.schedule.timeline import TimedAction
from drlpp.simulator.playing.costs import Costs, Pricing
from drlpp.simulator.playing.events import Play, play
from drlpp.simulator.playing.program import ARRIVED, Program
from drlpp.simulator.playing.shapes import program_of


@dataclass(frozen=True)
class FiniteRun:
    """A run that begins and ends empty, and what its window says where there is no period.

    Attributes:
        window: that is measured.
        program: of its schedule.
        costs: of its steps.
        played: when everything happened.
    """

    window: Window
    program: Program
    costs: Costs
    played: Play

    @classmethod
    def of(cls, pipeline: Pipeline, method: Method, window: Window, pricing: Pricing) -> FiniteRun:
        """Play a schedule that is as long as the window needs."""
        program = _compiled(pipeline.numbered, method, window.minibatches)
        costs = pricing.of(program)
        return cls(window, program, costs, play(program, costs))

    @property
    def minibatches(self) -> int:
        """The minibatches of the window."""
        return self.window.length

    @property
    def seconds(self) -> float:
        """What they take the slowest worker."""
        return max(self._seconds_of_workers)

    @property
    def steadiness(self) -> float:
        """What they take the fastest worker over what they take the slowest."""
        return min(self._seconds_of_workers) / self.seconds if self.seconds else 1.0

    def completions(self, step: int) -> list[float]:
        """Return when minibatches were complete: at the window's begin, and after each ``step``."""
        window = self.window
        through = range(window.warm_up, window.warm_up + window.length + 1, step)
        return [max(map(getitem, self._ends, self._updates(one))) for one in through]

    def busy_seconds(self, worker: int, minibatches: int) -> float:
        """Return what a worker, by its index, computes between the window's begin and its end."""
        begin, end = self.completions(minibatches)
        busy = 0.0
        for step in self.played.steps_of(worker):
            if step.kind >= 0 and step.end > begin and step.begin < end:
                busy += min(step.end, end) - max(step.begin, begin)
        return busy

    @cached_property
    def _ends(self) -> list[list[float]]:
        return self.played.ends

    @cached_property
    def _seconds_of_workers(self) -> tuple[float, ...]:
        window = self.window
        first, last = (self._updates(window.warm_up + n) for n in (0, window.length))
        ends = zip(self._ends, first, last, strict=True)
        return tuple(done[end] - done[begin] for done, begin, end in ends)

    def _updates(self, minibatches: int) -> list[int]:
        """Return the step of every worker that completes the first so many."""
        return [
            updates[bisect_left(updates, minibatches, key=itemgetter(1))][0]
            for updates in self.program.updates
        ]

    def timeline(self, schedule: Schedule) -> tuple[TimedAction, ...]:
        """Return the actions of the schedule that was compiled, by start.

        A receive takes no time and stands at the moment when it is done. An all-reduce takes as
        long as a worker waits for it: buckets that travel during a backward are in the backward.
        Weights are predicted at the beginning of a pass.
        """
        timed = []
        for index, worker in enumerate(schedule.pipeline.stages_by_worker):
            steps = list(self.played.steps_of(index))
            times = ((step.begin, step.end) for step in steps if step.kind != ARRIVED)
            arrived = chain.from_iterable(step.arrived for step in steps)
            now = 0.0
            for action in schedule.actions[worker]:
                start = now
                if isinstance(action, Receive):
                    start = now = max(now, next(arrived))
                elif not isinstance(action, Send):
                    start, now = next(times)
                predictions: tuple[tuple[float, float], ...] = ()
                if isinstance(action, Forward | Backward):
                    part = self._predicting_part(index, backward=isinstance(action, Backward))
                    predictions = ((start, start + part * (now - start)),) if part else ()
                timed.append(TimedAction(worker, action, start, now, predictions))
        return tuple(sorted(timed, key=lambda timed_action: timed_action.start))

    def _predicting_part(self, index: int, *, backward: bool) -> float:
        """Return the part of a pass that a worker predicts weights in."""
        costs, kind = self.costs, int(backward)
        predicting = costs.prediction_seconds[index, kind]
        return float(predicting / costs.seconds[index * costs.kinds + kind]) if predicting else 0.0


@lru_cache(maxsize=8)
def _compiled(shape: Pipeline, method: Method, minibatches: int) -> Program:
    """Return the program of a schedule; a search comes back to long ones of one shape."""
    return program_of(shape, method, minibatches)
