"""Which runs a table of learning still needs: rates, then the loss to reach, then seeds.

The target is the loss that the baseline, which flushes, has after three quarters of its
minibatches at its best rate, the mean over seeds: a little worse than its best, as the papers'
thresholds are. A method that has not reached it after twice the minibatches is given up.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from benchmarks.learning.curves import POWERS, next_powers
from benchmarks.papers.claims import NOT_YET, spread
from benchmarks.papers.learning import TASKS, Job, Late, Learned, learn
from benchmarks.study import Study

SEEDS = (0, 1, 2)
LONGEST = 2
"""Times the study's minibatches, after which a method is given up."""
_TARGET_SHARE = 0.75


@dataclass(frozen=True)
class LearningTable:
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
    rows: Callable[[int], Mapping[str, Late]]
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

    def row(self, method: str) -> Late:
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

    def __init__(self, study: LearningTable, results: Sequence[Learned]) -> None:
        self.study = study
        self._found = {result.case: result for result in results}

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

    def next_job(self, method: str) -> Job | None:
        """Return the run of a method to make next; None if there is none, or none yet."""
        if self.study.own_rates or method == self.baseline:
            first = TASKS[self.study.task].first_power
            for power in next_powers(self.walked(method), first):
                return self.study.walk(method, power)
        if method != self.baseline and self.target is None:
            return None
        for seed in self.study.seeds:
            job, final = self._final(method, seed)
            if final is None:
                return job
        return None

    def minibatches_to_target(self, method: str) -> list[float | None]:
        """Return after how many minibatches each seed reached the target, None if it did not."""
        assert self.target is not None
        return [final.minibatches_to(self.target) for final in self.finals(method)]


class Goal(NamedTuple):
    """A method of a table that is to be trained to the end."""

    task: str
    method: str


class LearningStudy(Study[Job, Learned]):
    """Tables whose methods are replayed to the loss of their baseline."""

    row = Learned

    def tables(self, *, short: bool) -> list[LearningTable]:
        """Return the tables, or a small one."""
        raise NotImplementedError

    def cases(self, seeds: int | None, *, short: bool) -> list[Any]:
        """Return every method; which runs each needs follows from what was found."""
        self._tables = {
            table.task: replace(table, seeds=tuple(range(seeds))) if seeds else table
            for table in self.tables(short=short)
        }
        return [
            Goal(task, method) for task, table in self._tables.items() for method in table.methods
        ]

    def wanted(self, cases: Sequence[Any], rows: Sequence[Learned]) -> list[Job]:
        """Return the next run of each method, and of the baseline that sets its target."""
        jobs: dict[Job, None] = {}
        for goal in cases:
            progress = Progress(self._tables[goal.task], rows)
            for method in (progress.baseline, goal.method):
                if (job := progress.next_job(method)) is not None:
                    jobs[job] = None
        return list(jobs)

    def run(self, case: Job) -> Learned:
        """Replay a run."""
        table = next(t for t in self.tables(short=False) if t.task == case.task)
        return learn(case, table.rows(case.planned)[case.method])


def target_text(progress: Progress) -> str:
    """Return the loss to reach."""
    return NOT_YET if progress.target is None else f"{progress.target:.3f}"


def quality_text(progress: Progress, method: str) -> str:
    """Return the loss after the study's minibatches, over seeds."""
    finals = progress.finals(method)
    losses = [final.loss for final in finals if math.isfinite(final.loss)]
    diverged = len(finals) - len(losses)
    text = spread(losses) if losses or not finals else "diverged"
    return f"{text} ({diverged} of {len(finals)} diverged)" if diverged and losses else text


def scores(progress: Progress, method: str) -> list[float]:
    """Return the score of every seed then, in %."""
    found = (final.at_plan().score for final in progress.finals(method))
    return [100 * score for score in found if score is not None]


def counted(progress: Progress, method: str) -> dict[int, float]:
    """Return the minibatches of each seed to the target; who is not there counts as at the end."""
    target = progress.target
    if target is None:
        return {}
    return {
        final.case.seed: final.minibatches_to(target) or LONGEST * progress.study.planned
        for final in progress.finals(method)
    }


def missed(progress: Progress, method: str) -> int:
    """Return how many seeds were not at the target."""
    target = progress.target
    if target is None:
        return 0
    return sum(final.minibatches_to(target) is None for final in progress.finals(method))


def reached_text(progress: Progress, method: str) -> str:
    """Return the minibatches to the loss, and how many seeds were not there."""
    minibatches = counted(progress, method)
    if not minibatches:
        return NOT_YET
    text, late = spread(list(minibatches.values()), 0), missed(progress, method)
    return f"{text} ({late} of {len(minibatches)} not there)" if late else text
