"""Methods trained to a loss: each at its best rate, replayed in one process.

The rule is the same for all methods. Rates are powers of two, in thousandths; a walk goes on until
both neighbours of the best are worse, by the held-out loss of the first seed after the planned
minibatches. At the best rate every seed is trained until it has the loss to reach, which the
baseline sets, or is given up. Nothing is timed, so a busy machine gives the same numbers.
"""

from __future__ import annotations

import math
import statistics
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import ClassVar

import torch
from torch import Tensor

from benchmarks.deep_models import even_stages
from benchmarks.learning.averaged import Averaged, Averaging
from benchmarks.learning.replay import Replay
from benchmarks.learning.tasks import TASKS
from benchmarks.papers.claims import NOT_YET, spread
from benchmarks.study import Row, Study
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.io.documents import Record
from drlpp.runtime import Minibatches
from drlpp.schedule.method import Method
from drlpp.specs.data import Data
from drlpp.specs.optimizer_spec import OptimizerSpec

POWERS = range(-4, 7)
"""Of two: learning rates are so many thousandths."""
EVALUATIONS = 16
"""In the planned minibatches."""
SEEDS = 3

_OPTIMIZERS: dict[str, tuple[int, dict[str, object]]] = {
    "sgd": (3, {"momentum": 0.9, "weight_decay": 5e-4}),
    "adam": (1, {}),
    "adamw": (1, {"weight_decay": 0.01}),
    # As AsyncPP has it.
    "nadam": (1, {"weight_decay": 0.01, "betas": (0.99, 0.999), "decoupled_weight_decay": True}),
    "muon": (2, {"weight_decay": 0.01}),
}
"""The power that a walk begins with, and the options."""
TITLES = {"sgd": "SGDM", "adam": "Adam", "adamw": "AdamW"}


def spec_of(optimizer: str, power: int) -> OptimizerSpec:
    """Return an optimizer with a rate of 2^power thousandths."""
    return OptimizerSpec.parse(optimizer, lr=1e-3 * 2.0**power, **_OPTIMIZERS[optimizer][1])


@dataclass(frozen=True)
class Late:
    """A method of a table.

    Attributes:
        method: what is run.
        synchronous: minibatches at the beginning that flush before every update.
        averaging: of the weights of as many workers as there would be stages, which have no
            pipeline then.
    """

    method: Method
    synchronous: int = 0
    averaging: Averaging | None = None


class Point(Record):
    """An evaluation on the held-out samples; a loss that is not finite is None."""

    minibatches: int
    loss: float | None
    score: float | None


class Case(Record):
    """A method on a task.

    Attributes:
        task, optimizer, method: by their names.
        stages: of the straight pipeline; 1 for a method that is never late.
        planned: minibatches of a run.
        seeds: of weights and order, from 0.
        own_rate: whether the method has its own best rate, or the baseline's.
        given: the power of the baseline's rate; None before that is known, and with an own rate.
        goals: the loss to reach, of each seed; None of the baseline, and before it has set them.
    """

    task: str
    optimizer: str
    method: str
    stages: int
    planned: int
    seeds: int = SEEDS
    own_rate: bool = True
    given: int | None = None
    goals: tuple[float, ...] | None = None

    @property
    def asked(self) -> Case:
        """Itself before the baseline has run."""
        return self.model_copy(update={"given": None, "goals": None})


class Run(Record):
    """A seed at the rate that counts.

    Attributes:
        loss, score: held-out, after the planned minibatches; a loss that is not finite is None.
        reached: minibatches to the loss to reach; None of a run that was given up.
    """

    loss: float | None
    score: float | None
    reached: float | None


class Learned(Row):
    """What a method did.

    Attributes:
        power: of two, thousandths: the rate of its runs.
        targets: the loss to reach, of each seed; infinite where the baseline diverges.
        runs: one a seed.
        seconds: of one process, for the walk and the runs.
    """

    case: Case
    power: int
    targets: tuple[float, ...]
    runs: tuple[Run, ...]
    seconds: float

    @property
    def losses(self) -> dict[int, float]:
        """The losses after the planned minibatches, of the seeds where they are finite."""
        return {seed: run.loss for seed, run in enumerate(self.runs) if run.loss is not None}

    @property
    def scores(self) -> dict[int, float]:
        """The scores then, in %."""
        found = enumerate(run.score for run in self.runs)
        return {seed: 100 * score for seed, score in found if score is not None}

    @property
    def missed(self) -> int:
        """How many seeds were given up."""
        return sum(run.reached is None for run in self.runs)


class LearningStudy(Study[Case, Learned]):
    """Methods that are replayed to the loss of their baseline.

    Attributes:
        target_share: of the baseline's minibatches, after which it has the loss to reach.
        longest: times the planned minibatches, after which a method is given up.
        each_seed: whether each seed has the baseline's loss with that seed to reach, or all their
            mean.
    """

    row = Learned
    target_share: ClassVar[float] = 0.75
    longest: ClassVar[float] = 2
    each_seed: ClassVar[bool] = False

    @abstractmethod
    def methods(self, case: Case) -> Mapping[str, Late]:
        """Return the methods beside which a case stands; the first is the baseline."""

    def baseline(self, case: Case) -> Case:
        """Return the case that sets the loss to reach, and the rate of those without an own one."""
        first = next(iter(self.methods(case)))
        return case.asked.model_copy(update={"method": first, "stages": 1, "own_rate": True})

    def wanted(self, cases: Sequence[Case], rows: Sequence[Learned]) -> list[Case]:
        """Return what is missing; methods wait for the loss that their baseline sets."""
        found = {row.case.asked: row for row in rows}
        wanted: dict[Case, None] = {}
        for case in cases:
            if case in found:
                continue
            baseline = self.baseline(case)
            set_by = found.get(baseline)
            if case == baseline or set_by is None:
                wanted[baseline] = None
                continue
            given = None if case.own_rate else set_by.power
            wanted[case.model_copy(update={"given": given, "goals": set_by.targets})] = None
        return list(wanted)

    def run(self, case: Case) -> Learned:
        """Find the rate, and train every seed with it."""
        started = time.perf_counter()
        train = partial(_train, case, self.methods(case)[case.method])
        walked: dict[int, list[Point]] = {}

        def losses() -> dict[int, float]:
            return {power: _loss_at(points, case.planned) for power, points in walked.items()}

        while case.given is None and (
            powers := next_powers(losses(), _OPTIMIZERS[case.optimizer][0])
        ):
            walked |= {power: list(train(power, 0, case.planned)) for power in powers}
        power = case.given
        if power is None:
            power = min(walked, key=losses().__getitem__)
        curves = []
        for seed in range(case.seeds):
            goal = None if case.goals is None else case.goals[seed]
            tried = walked.get(power) if seed == 0 else None
            # Who was there while it tried its rate trains no second time.
            if tried is None or (goal is not None and reached(goal, tried) is None):
                end = case.planned if goal is None else round(self.longest * case.planned)
                tried = list(train(power, seed, end, goal))
            curves.append(tried)
        targets = self._targets(case, curves) if case.goals is None else case.goals
        return Learned(
            case=case,
            power=power,
            targets=targets,
            runs=tuple(
                _run(points, case.planned, target)
                for points, target in zip(curves, targets, strict=True)
            ),
            seconds=time.perf_counter() - started,
        )

    def _targets(self, case: Case, curves: Sequence[Sequence[Point]]) -> tuple[float, ...]:
        after = self.target_share * case.planned
        losses = [
            next((p.loss for p in points if p.minibatches >= after), None) for points in curves
        ]
        # A baseline that diverges sets no target that others could miss.
        finite = [math.inf if loss is None else loss for loss in losses]
        return tuple(finite) if self.each_seed else (statistics.mean(finite),) * len(finite)

    def of(self, rows: Iterable[Learned], case: Case) -> Learned | None:
        """Return what a case gave; with the most seeds, if it ran with several numbers of them."""
        alike = {"seeds": 0}
        wanted = case.asked.model_copy(update=alike)
        found = [row for row in rows if row.case.asked.model_copy(update=alike) == wanted]
        return max(found, key=lambda row: row.case.seeds, default=None)

    def counted(self, row: Learned | None) -> dict[int, float]:
        """Return the minibatches of each seed to the target; one given up counts as at the end."""
        if row is None:
            return {}
        end = self.longest * row.case.planned
        return {seed: run.reached or end for seed, run in enumerate(row.runs)}

    def reached_text(self, row: Learned | None) -> str:
        """Return the minibatches to the loss, and how many seeds were not there."""
        if row is None:
            return NOT_YET
        text = spread(list(self.counted(row).values()), 0)
        return f"{text} ({row.missed} of {len(row.runs)} not there)" if row.missed else text


def quality_text(row: Learned | None) -> str:
    """Return the loss after the planned minibatches, over seeds."""
    if row is None:
        return NOT_YET
    losses, diverged = list(row.losses.values()), len(row.runs) - len(row.losses)
    text = spread(losses) if losses else "diverged"
    return f"{text} ({diverged} of {len(row.runs)} diverged)" if diverged and losses else text


def target_text(row: Learned | None) -> str:
    """Return the loss to reach that a baseline set."""
    return NOT_YET if row is None else f"{row.targets[0]:.3f}"


def _train(
    case: Case, row: Late, power: int, seed: int, longest: int, goal: float | None = None
) -> Iterator[Point]:
    """Train with the weights that the method would give every stage, and yield evaluations."""
    task, data, captured = TASKS[case.task], _data(case.task), _captured(case.task, seed)
    optimizer = spec_of(case.optimizer, power)
    order = shuffled(len(data.train), task.batch_size, longest, seed)
    samples = Minibatches(data.train.inputs, data.train.targets, order)
    replay: Replay | Averaged
    if row.averaging is not None:
        replay = Averaged(captured, case.stages, row.averaging, row.method, optimizer, samples)
    else:
        replay = Replay(
            captured,
            even_stages(captured.graph, 1 if row.method.flushes else case.stages),
            row.method,
            optimizer,
            samples,
            [optimizer.rate] * longest,
            synchronous=row.synchronous,
        )
    every = max(case.planned // EVALUATIONS, 1)
    for done, training_loss in enumerate(replay.run(), start=1):
        ends = done in (case.planned, longest)
        if done % every and not ends and math.isfinite(training_loss):
            continue
        loss, score = replay.evaluate(data.test)
        if not (math.isfinite(loss) and math.isfinite(training_loss)):
            yield Point(minibatches=done, loss=None, score=None)
            return
        yield Point(minibatches=done, loss=loss, score=score)
        if done >= case.planned and goal is not None and loss <= goal:
            return


@lru_cache(maxsize=1)
def _data(task: str) -> Data:
    return TASKS[task].load()


@lru_cache(maxsize=2)
def _captured(task: str, seed: int) -> CapturedModel:
    return capture(TASKS[task].reference, seed=seed)


def _at(points: Sequence[Point], planned: int) -> Point:
    """Return the evaluation after the planned minibatches, or the one that ended the run."""
    return max((p for p in points if p.minibatches <= planned), key=lambda p: p.minibatches)


def _loss_at(points: Sequence[Point], planned: int) -> float:
    loss = _at(points, planned).loss
    return math.inf if loss is None else loss


def _run(points: Sequence[Point], planned: int, target: float) -> Run:
    then = _at(points, planned)
    return Run(loss=then.loss, score=then.score, reached=reached(target, points))


def reached(target: float, points: Iterable[Point]) -> float | None:
    """Return after how many minibatches a loss was reached, None if it was not.

    Between evaluations the loss is taken for a straight line; one that is not finite ends it.
    """
    before: tuple[int, float] | None = None
    for point in points:
        minibatch, loss = point.minibatches, point.loss
        if loss is None:
            return None
        if loss <= target:
            if before is None or before[1] <= loss:
                return minibatch
            share = (before[1] - target) / (before[1] - loss)
            return before[0] + share * (minibatch - before[0])
        before = minibatch, loss
    return None


def shuffled(samples: int, batch_size: int, minibatches: int, seed: int) -> Tensor:
    """Return the samples of all minibatches, shuffled anew whenever they have all been seen.

    Runs of the same seed see the same samples in the same order, however long they are.

    Shapes: ``(minibatches, batch_size)``.
    """
    generator = torch.Generator().manual_seed(seed)
    full = samples // batch_size
    epochs = -(-minibatches // full)
    orders = [
        torch.randperm(samples, generator=generator)[: full * batch_size] for _ in range(epochs)
    ]
    return torch.cat(orders).view(-1, batch_size)[:minibatches]


def next_powers(losses: Mapping[int, float], first: int) -> list[int]:
    """Return the powers to try next; none if the best has worse neighbours, or the range ends."""
    if first not in losses:
        return [first]
    best = min(losses, key=losses.__getitem__)
    if math.isinf(losses[best]):
        # Nothing but smaller rates can help.
        return [min(losses) - 1] if min(losses) - 1 in POWERS else []
    return [power for power in (best - 1, best + 1) if power in POWERS and power not in losses]
