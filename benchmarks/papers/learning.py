"""Runs that learn: how many minibatches a method needs to a loss, replayed in one process.

Nothing here is timed, so a busy machine gives the same numbers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch

from benchmarks.deep_models import even_stages, spread, topics_text
from benchmarks.learning.curves import minibatches_to, shuffled
from benchmarks.learning.replay import Replay
from benchmarks.study import Row
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.io.documents import Record
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import Minibatches
from drlpp.schedule.method import Method
from drlpp.specs.data import Data, Samples, digits
from drlpp.specs.optimizer_spec import OptimizerSpec

EVALUATIONS = 16
"""In the minibatches that a study has."""
_HELD_OUT = 320


@dataclass(frozen=True)
class LearningTask:
    """What is learned.

    Attributes:
        title: what it is.
        model: name of its factory.
        load: samples to train on, and held-out ones.
        batch_size: of a minibatch.
        optimizer: its name; the options are the papers'.
        first_power: of two, thousandths: the rate that a search begins with.
        minibatches: of a run.
    """

    title: str
    model: str
    load: Callable[[], Data]
    batch_size: int
    optimizer: str
    first_power: int
    minibatches: int

    def spec(self, power: int) -> OptimizerSpec:
        """Return the optimizer with a rate of 2^power thousandths."""
        options = _OPTIONS[self.optimizer]
        return OptimizerSpec.parse(self.optimizer, lr=1e-3 * 2.0**power, **options)


_OPTIONS = {"sgd": {"momentum": 0.9, "weight_decay": 5e-4}, "adamw": {"weight_decay": 0.01}}


def _text() -> Data:
    """Return Python's documentation, with some hundred of the held-out sequences."""
    train, held_out = topics_text(32)
    return Data(train, spread(held_out, _HELD_OUT))


TASKS = {
    "digits": LearningTask(
        title="CNN of 25 thousand weights, digits, SGDM",
        model="benchmarks.deep_models:digits_cnn",
        load=lambda: digits((torch.zeros(1, 1, 8, 8),)),
        batch_size=32,
        optimizer="sgd",
        first_power=3,
        minibatches=400,
    ),
    "text": LearningTask(
        title="Decoder of 0.3 million weights, text, AdamW",
        model="benchmarks.deep_models:decoder",
        load=_text,
        batch_size=16,
        optimizer="adamw",
        first_power=1,
        minibatches=200,
    ),
}


@dataclass(frozen=True)
class Late:
    """A method of a table.

    Attributes:
        method: what is run.
        synchronous: minibatches at the beginning that flush before every update.
    """

    method: Method
    synchronous: int = 0


class Job(Record):
    """One run of a method.

    Attributes:
        task, method: by their names.
        stages: of the straight pipeline.
        power: of two, thousandths: its learning rate.
        planned: minibatches that a run of the study has.
        longest: after which the run ends at the latest.
        target: a held-out loss with which it ends after ``planned`` minibatches.
        seed: of weights and order.
    """

    task: str
    method: str
    stages: int
    power: int
    planned: int
    longest: int
    target: float | None = None
    seed: int = 0


class Point(Record):
    """An evaluation on the held-out samples; a loss that is not finite is None."""

    minibatches: int
    loss: float | None
    score: float | None


class Learned(Row):
    """What came out of a job: its curve, and the seconds of one process."""

    case: Job
    points: tuple[Point, ...]
    seconds: float

    def at_plan(self) -> Point:
        """Return the evaluation after the study's minibatches, or the one that ended the run."""
        return max(
            (p for p in self.points if p.minibatches <= self.case.planned),
            key=lambda point: point.minibatches,
        )

    @property
    def loss(self) -> float:
        """The loss after the study's minibatches; infinite where it is not finite."""
        found = self.at_plan().loss
        return math.inf if found is None else found

    def minibatches_to(self, target: float) -> float | None:
        """Return after how many minibatches a loss was reached, None if it was not."""
        return minibatches_to(target, [(p.minibatches, p.loss) for p in self.points])


def learn(job: Job, row: Late) -> Learned:
    """Train in this process, with the weights that the method would give every stage."""
    started = time.perf_counter()
    task, data = TASKS[job.task], _data(job.task)
    captured = _captured(job.task, job.seed)
    order = shuffled(len(data.train), task.batch_size, job.longest, job.seed)
    optimizer = task.spec(job.power)
    stages = 1 if row.method.flushes else job.stages
    replay = Replay(
        captured,
        even_stages(captured.graph, stages),
        row.method,
        optimizer,
        Minibatches(data.train.inputs, data.train.targets, order),
        [float(optimizer.value("lr"))] * job.longest,
        synchronous=row.synchronous,
    )
    return Learned(
        case=job,
        points=tuple(_points(job, replay, data.test)),
        seconds=time.perf_counter() - started,
    )


def _points(job: Job, replay: Replay, held_out: Samples) -> Iterator[Point]:
    every = max(job.planned // EVALUATIONS, 1)
    for done, training_loss in enumerate(replay.run(), start=1):
        ends = done in (job.planned, job.longest)
        if done % every and not ends and math.isfinite(training_loss):
            continue
        loss, score = replay.evaluate(held_out)
        if not (math.isfinite(loss) and math.isfinite(training_loss)):
            yield Point(minibatches=done, loss=None, score=None)
            return
        yield Point(minibatches=done, loss=loss, score=score)
        if done >= job.planned and job.target is not None and loss <= job.target:
            return


@lru_cache(maxsize=1)
def _data(task: str) -> Data:
    return TASKS[task].load()


@lru_cache(maxsize=2)
def _captured(task: str, seed: int) -> CapturedModel:
    of = TASKS[task]
    return capture(ModelReference.named(of.model, batch_size=of.batch_size), seed=seed)
