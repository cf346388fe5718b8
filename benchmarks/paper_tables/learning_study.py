"""Which runs a table still needs: rates, then the loss to reach, then seeds.

The target is the loss that the baseline, which flushes, has after three quarters of its
minibatches at its best rate, the mean over seeds: a little worse than its best, as the papers'
thresholds are. A method that has not reached it after twice the minibatches is given up.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.learning.curves import POWERS, next_powers
from benchmarks.paper_tables.learning import TASKS, Job, Learned, Row

SEEDS = (0, 1, 2)
LONGEST = 2
"""Times the study's minibatches, after which a method is given up."""
_TARGET_SHARE = 0.75


@dataclass(frozen=True)
class Study:
    """A table's methods on a task.

    Attributes:
        task: its name.
        stages: of the straight pipeline.
        rows: of every method by its name, for a number of minibatches; the first is the baseline.
        own_rates: every method has its own best rate, else all have the baseline's.
        minibatches: of a run; None for the task's.
        seeds: of what is compared.
    """

    task: str
    stages: int
    rows: Callable[[int], Mapping[str, Row]]
    own_rates: bool = True
    minibatches: int | None = None
    seeds: Sequence[int] = SEEDS

    @property
    def planned(self) -> int:
        """Minibatches of a run."""
        return self.minibatches or TASKS[self.task].minibatches

    @property
    def methods(self) -> list[str]:
        """Their names; the baseline is the first."""
        return list(self.rows(self.planned))

    def row(self, method: str) -> Row:
        """Return a method."""
        return self.rows(self.planned)[method]

    def walk(self, method: str, power: int) -> Job:
        """Return a run that tries a rate."""
        return self._job(method, power, longest=self.planned)

    def final(self, method: str, power: int, seed: int, target: float | None) -> Job:
        """Return a run whose figures count; the baseline's set the target."""
        longest = self.planned * (1 if target is None else LONGEST)
        return self._job(method, power, longest=longest, seed=seed, target=target)

    def _job(self, method: str, power: int, **others: object) -> Job:
        # The baseline is never late: stages do not concern it.
        stages = 1 if self.row(method).method.flushes else self.stages
        return Job.model_validate(
            {
                "task": self.task,
                "method": method,
                "stages": stages,
                "power": power,
                "planned": self.planned,
                **others,
            }
        )


class Progress:
    """What results say about a study so far."""

    def __init__(self, study: Study, results: Sequence[Learned]) -> None:
        self.study = study
        self._found = {result.job: result for result in results}

    @property
    def baseline(self) -> str:
        """The method that sets the target."""
        return self.study.methods[0]

    def walked(self, method: str) -> dict[int, float]:
        """Return the losses of the rates that were tried."""
        jobs = {power: self.study.walk(method, power) for power in POWERS}
        return {power: self._found[job].loss for power, job in jobs.items() if job in self._found}

    def power(self, method: str) -> int | None:
        """Return the rate's power that a method trains with; None as long as it is searched."""
        if not self.study.own_rates:
            method = self.baseline
        losses = self.walked(method)
        if next_powers(losses, TASKS[self.study.task].first_power):
            return None
        return min(losses, key=losses.__getitem__)

    def finals(self, method: str) -> list[Learned]:
        """Return the runs that count, one for each seed that was run."""
        found = [self._final(method, seed)[1] for seed in self.study.seeds]
        return [final for final in found if final is not None]

    def _final(self, method: str, seed: int) -> tuple[Job | None, Learned | None]:
        """Return the run of a seed that counts, and what came out; None as long as it is not known.

        One that reached the target while it tried its rate is not made again.
        """
        power = self.power(method)
        if power is None:
            return None, None
        target = None if method == self.baseline else self.target
        job, walk = self.study.final(method, power, seed, target), self.study.walk(method, power)
        tried = self._found.get(walk) if seed == 0 else None
        if tried is not None and target is not None and tried.minibatches_to(target) is not None:
            return walk, tried
        return job, self._found.get(job)

    @property
    def target(self) -> float | None:
        """The loss to reach; None as long as the baseline's runs are not all there."""
        finals = self.finals(self.baseline)
        if len(finals) < len(self.study.seeds):
            return None
        after = _TARGET_SHARE * self.study.planned
        later = [[p.loss for p in f.points if p.minibatches >= after] for f in finals]
        losses = [losses[0] for losses in later if losses and losses[0] is not None]
        # A baseline that diverges sets no target that others could miss.
        return statistics.mean(losses) if len(losses) == len(finals) else math.inf

    def next_job(self, methods: Sequence[str] = ()) -> Job | None:
        """Return the run to make next; None if all there is of the methods, by default all."""
        for method in self.study.methods:
            if methods and method not in (self.baseline, *methods):
                continue
            if self.study.own_rates or method == self.baseline:
                first = TASKS[self.study.task].first_power
                for power in next_powers(self.walked(method), first):
                    return self.study.walk(method, power)
            for seed in self.study.seeds:
                job, final = self._final(method, seed)
                if final is None:
                    return job
        return None

    def minibatches_to_target(self, method: str) -> list[float | None]:
        """Return after how many minibatches each seed reached the target, None if it did not."""
        assert self.target is not None
        return [final.minibatches_to(self.target) for final in self.finals(method)]
