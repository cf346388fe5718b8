"""Which runs the study needs next, from the results that it has: every method at its own best rate.

The rule is the same for all. Rates are 2^k thousandths. A walk begins at the same rate for all
methods of an optimizer, and goes on until both neighbours of the best one are worse, at as many
minibatches as plain training has, with seed 0. Then the best run is made longer until it reaches
plain training's loss. What ends within a margin of the best of its depth is run with more seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.learning_curves import POWERS, next_powers
from benchmarks.samples_to_loss.methods import BASELINE, METHODS
from benchmarks.samples_to_loss.runs import Job, Result

FIRST_POWERS = {"adamw": 1, "nadam": 1, "muon": 2, "basisrotation": 1}
"""Where the walks begin: 0.002 and 0.004."""
LONGEST = 3.0
"""Of plain training's minibatches, after which a method is given up."""
STRETCHES = (1.25, 1.5, 2.0, LONGEST)
"""How much longer a run is made whose rate decays, one after another."""
MARGIN = 0.05
MORE_SEEDS = (1, 2)


@dataclass(frozen=True)
class Study:
    """What is compared: a task, with or without a decaying rate.

    Attributes:
        task: its name.
        decays: whether learning rates do.
        minibatches: of plain training.
        depths: of the pipelines.
        methods: names of methods; the baseline is always there.
    """

    task: str
    decays: bool
    minibatches: int
    depths: Sequence[int]
    methods: Sequence[str]

    @property
    def rows(self) -> list[tuple[str, int | None]]:
        """Every method with every depth, or None where it does not matter; the baseline first."""
        others = [name for name in self.methods if name != BASELINE]
        return [
            (name, depth)
            for name in (BASELINE, *others)
            for depth in ([None] if METHODS[name].plain else self.depths)
        ]

    def job(self, method: str, depth: int | None, power: int, **others: object) -> Job:
        """Return a run of as many minibatches as plain training has, unless ``others`` say more."""
        usual = {"minibatches": self.minibatches, "plain_minibatches": self.minibatches}
        return Job.model_validate(
            {
                "task": self.task,
                "decays": self.decays,
                "method": method,
                "depth": depth,
                "learning_rate": 1e-3 * 2.0**power,
                **usual,
                **others,
            }
        )


class Progress:
    """What the results say about a study so far."""

    def __init__(self, study: Study, results: Iterable[Result]) -> None:
        self.study = study
        self._found = {result.job: result for result in results}

    def walked(self, method: str, depth: int | None) -> dict[int, float]:
        """Return the losses of a row by the power of their rate."""
        jobs = {power: self.study.job(method, depth, power) for power in POWERS}
        return {p: self._found[job].final_loss for p, job in jobs.items() if job in self._found}

    def best_power(self, method: str, depth: int | None) -> int | None:
        """Return the power of the best rate, None as long as the walk is not at its end."""
        losses = self.walked(method, depth)
        if next_powers(losses, FIRST_POWERS[METHODS[method].optimizer]):
            return None
        return min(losses, key=losses.__getitem__)

    def result(self, method: str, depth: int | None, seed: int = 0) -> Result | None:
        """Return a row's run at its best rate."""
        power = self.best_power(method, depth)
        return (
            None
            if power is None
            else self._found.get(self.study.job(method, depth, power, seed=seed))
        )

    @property
    def target(self) -> float | None:
        """The loss that plain training reaches, None as long as its walk is not at its end."""
        plain = self.result(BASELINE, None)
        return None if plain is None else plain.final_loss

    def longer(self, method: str, depth: int | None) -> list[Job]:
        """Return the runs at the best rate that may reach the target, the shortest first."""
        power, study = self.best_power(method, depth), self.study
        if power is None or self.target is None:
            return []
        stretches = STRETCHES if study.decays else (LONGEST,)
        # A rate that decays has to reach its end.
        target = None if study.decays else self.target
        return [
            study.job(
                method,
                depth,
                power,
                minibatches=round(stretch * study.minibatches),
                target=target,
            )
            for stretch in stretches
        ]

    def samples_ratio(self, method: str, depth: int | None) -> float | None:
        """Return how many times plain training's samples a row needs to the target.

        None if it was not reached, or not run yet. With a decaying rate it is between the longest
        run that ended above the target and the shortest that ended below.
        """
        best, target = self.result(method, depth), self.target
        if best is None or target is None:
            return None
        runs = [best, *(self._found[j] for j in self.longer(method, depth) if j in self._found)]
        if not self.study.decays:
            reached = (run.minibatches_to(target) for run in runs)
            found = next((minibatches for minibatches in reached if minibatches is not None), None)
            return None if found is None else found / self.study.minibatches
        last: Result | None = None
        for run in runs:
            if run.final_loss <= target:
                ratio = run.job.minibatches / self.study.minibatches
                if last is None or math.isinf(last.final_loss):
                    return ratio
                before = last.job.minibatches / self.study.minibatches
                share = (last.final_loss - target) / (last.final_loss - run.final_loss)
                return before + share * (ratio - before)
            last = run
        return None

    def next_jobs(self) -> list[Job]:
        """Return the runs that are to be made next; none if the study is complete."""
        wanted: list[Job] = []
        for method, depth in self.study.rows:
            powers = next_powers(
                self.walked(method, depth), FIRST_POWERS[METHODS[method].optimizer]
            )
            wanted += [self.study.job(method, depth, power) for power in powers]
            best = self.result(method, depth)
            if best is None or math.isinf(best.final_loss):
                continue
            if self.samples_ratio(method, depth) is None:
                wanted += [j for j in self.longer(method, depth) if j not in self._found][:1]
        if not wanted:
            wanted = self._more_seeds()
        return [job for job in wanted if job not in self._found]

    def _more_seeds(self) -> list[Job]:
        """Return runs of other seeds: of plain training, and of what is nearly the best."""
        jobs = []
        for depth in (None, *self.study.depths):
            losses = {
                method: found.final_loss
                for method, other in self.study.rows
                if other == depth and (found := self.result(method, depth)) is not None
            }
            for method, loss in losses.items():
                power = self.best_power(method, depth)
                if power is not None and loss <= min(losses.values()) + MARGIN:
                    jobs += [self.study.job(method, depth, power, seed=seed) for seed in MORE_SEEDS]
        return jobs
