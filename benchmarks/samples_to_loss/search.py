"""Which runs the study needs next, from the results that it has: every method at its own best rate.

The rule is the same for all. Rates are 2^k thousandths. A walk begins at the same rate for all
methods of an optimizer, and goes on until both neighbours of the best one are worse, at as many
minibatches as plain training has, with seed 0. The least loss with which plain training ends is
the one to reach, and the best rate of everybody, plain training included, the one with which it is
there first. If none is there, the best run is made longer until it is; so is, with the same
optimizer, the run with the rate with which plain training ends best, which is what a user has. What
ends within a margin of the best of its depth and optimizer is run with more seeds, each against
plain training with that seed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from benchmarks.learning.curves import POWERS, next_powers
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

    def walked(self, method: str, depth: int | None) -> dict[int, Result]:
        """Return the runs of a row, as long as plain training's, by the power of their rate."""
        jobs = {power: self.study.job(method, depth, power) for power in POWERS}
        return {power: self._found[job] for power, job in jobs.items() if job in self._found}

    @cached_property
    def target_power(self) -> int | None:
        """The power of the rate with which plain training ends best; None before that is known."""
        losses = {p: run.final_loss for p, run in self.walked(BASELINE, None).items()}
        if next_powers(losses, FIRST_POWERS[METHODS[BASELINE].optimizer]):
            return None
        return min(losses, key=losses.__getitem__)

    def _ranks(self, method: str, depth: int | None) -> dict[int, float]:
        """Return how good the rates of a row are, less being better.

        Who reaches the target is ahead of who does not, the sooner the better; among the others the
        loss at the end counts.
        """
        # A rate that decays has to reach its end.
        target = None if self.study.decays else self.target()

        def rank(run: Result) -> float:
            reached = None if target is None else run.minibatches_to(target)
            return run.final_loss if reached is None else -1 / (1 + reached)

        return {power: rank(run) for power, run in self.walked(method, depth).items()}

    def _next_powers(self, method: str, depth: int | None) -> list[int]:
        return next_powers(self._ranks(method, depth), FIRST_POWERS[METHODS[method].optimizer])

    def best_power(self, method: str, depth: int | None) -> int | None:
        """Return the power of the best rate, None as long as the walk is not at its end."""
        if self._next_powers(method, depth):
            return None
        ranks = self._ranks(method, depth)
        return min(ranks, key=ranks.__getitem__)

    def result(
        self, method: str, depth: int | None, seed: int = 0, power: int | None = None
    ) -> Result | None:
        """Return a row's run at its best rate, or at that of ``power``."""
        power = self.best_power(method, depth) if power is None else power
        if power is None:
            return None
        return self._found.get(self.study.job(method, depth, power, seed=seed))

    def target(self, seed: int = 0) -> float | None:
        """Return the loss that plain training ends with, with that seed; None if it has not run."""
        if self.target_power is None:
            return None
        plain = self.result(BASELINE, None, seed, self.target_power)
        return None if plain is None else plain.final_loss

    def longer(
        self, method: str, depth: int | None, seed: int = 0, power: int | None = None
    ) -> list[Job]:
        """Return the runs at such a rate that may reach the target, the shortest first."""
        power, study = self.best_power(method, depth) if power is None else power, self.study
        target = self.target(seed)
        if power is None or target is None:
            return []
        return [
            study.job(
                method,
                depth,
                power,
                minibatches=round(stretch * study.minibatches),
                # A rate that decays has to reach its end.
                target=None if study.decays else target,
                seed=seed,
            )
            for stretch in (STRETCHES if study.decays else (LONGEST,))
        ]

    def samples_ratio(
        self, method: str, depth: int | None, seed: int = 0, power: int | None = None
    ) -> float | None:
        """Return how many times plain training's samples a row needs to the target of its seed.

        None if it was not reached, or not run yet. With a decaying rate it is between the longest
        run that ended above the target and the shortest that ended below.
        """
        best, target = self.result(method, depth, seed, power), self.target(seed)
        if best is None or target is None:
            return None
        longer = self.longer(method, depth, seed, power)
        runs = [best, *(self._found[job] for job in longer if job in self._found)]
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

    def ratios(
        self, method: str, depth: int | None, power: int | None = None
    ) -> list[float | None]:
        """Return the ratio of every seed that was run to an end; None if it was never there."""
        ratios = []
        for seed in (0, *MORE_SEEDS):
            if self.result(method, depth, seed, power) is None:
                continue
            ratio = self.samples_ratio(method, depth, seed, power)
            longer = self.longer(method, depth, seed, power)
            if ratio is not None or all(job in self._found for job in longer):
                ratios.append(ratio)
        return ratios

    def mean_ratio(self, method: str, depth: int | None) -> tuple[float, float] | None:
        """Return the mean of the ratios and their deviation, which is 0 of a single seed.

        None if one of them never reached the target.
        """
        ratios = self.ratios(method, depth)
        reached = [ratio for ratio in ratios if ratio is not None]
        if not reached or len(reached) < len(ratios):
            return None
        return statistics.mean(reached), statistics.stdev(reached) if len(reached) > 1 else 0.0

    def next_jobs(self) -> list[Job]:
        """Return the runs that are to be made next; none if the study is complete."""
        wanted: list[Job] = []
        for method, depth in self.study.rows:
            powers = self._next_powers(method, depth)
            wanted += [self.study.job(method, depth, power) for power in powers]
            wanted += self._runs_to_target(method, depth, seed=0)
        if not wanted:
            wanted = self._more_seeds()
        return [job for job in wanted if job not in self._found]

    def _runs_to_target(self, method: str, depth: int | None, seed: int) -> list[Job]:
        """Return the next runs of a row with its own best rate, and with plain training's."""
        own = self.best_power(method, depth)
        plain = self.target_power if METHODS[method].keeps_rate_of_plain else own
        jobs = []
        for power in {power for power in (own, plain) if power is not None}:
            usual = self.result(method, depth, seed, power)
            if usual is None:
                jobs.append(self.study.job(method, depth, power, seed=seed))
            elif (
                math.isfinite(usual.final_loss)
                and self.samples_ratio(method, depth, seed, power) is None
            ):
                longer = self.longer(method, depth, seed, power)
                jobs += [job for job in longer if job not in self._found][:1]
        return jobs

    def _more_seeds(self) -> list[Job]:
        """Return runs of other seeds: of plain training, and of what is nearly the best.

        The best is that of the same depth and optimizer.
        """
        jobs: list[Job] = []
        if self.target_power is not None:
            targets = [
                self.study.job(BASELINE, None, self.target_power, seed=s) for s in MORE_SEEDS
            ]
            if missing := [job for job in targets if job not in self._found]:
                return missing
        for depth in (None, *self.study.depths):
            losses = {
                method: found.final_loss
                for method, other in self.study.rows
                if other == depth and (found := self.result(method, depth)) is not None
            }
            for method, loss in losses.items():
                optimizer = METHODS[method].optimizer
                alike = (losses[other] for other in losses if METHODS[other].optimizer == optimizer)
                if loss <= min(alike) + MARGIN:
                    for seed in MORE_SEEDS:
                        jobs += self._runs_to_target(method, depth, seed)
        return jobs
