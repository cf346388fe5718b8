"""Training runs of the study: what one is, how it is done, and the file of their results."""

from __future__ import annotations

import math
import time
from functools import lru_cache
from pathlib import Path

from benchmarks.cells import read_results_of
from benchmarks.deep_models import even_stages
from benchmarks.learning.curves import minibatches_to, shuffled
from benchmarks.learning.replay import Replay
from benchmarks.samples_to_loss.methods import METHODS
from benchmarks.samples_to_loss.tasks import TASKS
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.io.documents import Record
from drlpp.runtime import Minibatches
from drlpp.specs.data import Data

EVALUATIONS = 16
"""In the minibatches that plain training has."""


class Job(Record):
    """One training run.

    Attributes:
        task, method: by their names.
        depth: of the pipeline; None for a method that it does not concern.
        learning_rate: that the run begins with.
        decays: along half a cosine, to 0 after ``minibatches``.
        minibatches: of the run.
        plain_minibatches: of plain training, which say how often the model is evaluated.
        target: a held-out loss with which the run ends, if it gets there.
        seed: of weights and order.
    """

    task: str
    method: str
    depth: int | None
    learning_rate: float
    decays: bool
    minibatches: int
    plain_minibatches: int
    target: float | None = None
    seed: int = 0


class Result(Record):
    """What came out of a job.

    Attributes:
        minibatches: after which the model was evaluated.
        losses: on the held-out samples then, in nats; None where it is not finite, with which a
            run ends.
        seconds: that the run took in one process.
    """

    job: Job
    minibatches: tuple[int, ...]
    losses: tuple[float | None, ...]
    seconds: float

    @property
    def final_loss(self) -> float:
        """The last loss; infinite of a run that diverged."""
        last = self.losses[-1]
        return math.inf if last is None else last

    def minibatches_to(self, target: float) -> float | None:
        """Return after how many minibatches the loss was reached, None if it was not."""
        return minibatches_to(target, zip(self.minibatches, self.losses, strict=True))


def run_job(job: Job) -> Result:
    """Train in this process, with the weights that the method would give every stage."""
    started = time.perf_counter()
    method = METHODS[job.method]
    data, captured = _data(job.task), _captured(job.task, job.seed)
    depth = job.depth or 1
    order = shuffled(len(data.train), TASKS[job.task].batch_size, job.minibatches, job.seed)
    replay = Replay(
        captured,
        even_stages(captured.graph, depth),
        method.build(depth, job.minibatches),
        method.spec(job.learning_rate),
        Minibatches(data.train.inputs, data.train.targets, order),
        rates_of(job),
    )
    every = max(job.plain_minibatches // EVALUATIONS, 1)
    minibatches: list[int] = []
    losses: list[float | None] = []
    for done, training_loss in enumerate(replay.run(), start=1):
        if done % every and done < job.minibatches and math.isfinite(training_loss):
            continue
        loss, _ = replay.evaluate(data.test)
        is_finite = math.isfinite(loss) and math.isfinite(training_loss)
        minibatches.append(done)
        losses.append(loss if is_finite else None)
        if not is_finite or (job.target is not None and loss <= job.target):
            break
    return Result(
        job=job,
        minibatches=tuple(minibatches),
        losses=tuple(losses),
        seconds=time.perf_counter() - started,
    )


def rates_of(job: Job) -> list[float]:
    """Return the learning rate of every minibatch."""
    if not job.decays:
        return [job.learning_rate] * job.minibatches
    angles = (math.pi * minibatch / job.minibatches for minibatch in range(job.minibatches))
    return [job.learning_rate * (1 + math.cos(angle)) / 2 for angle in angles]


@lru_cache(maxsize=1)
def _data(task: str) -> Data:
    return TASKS[task].load()


@lru_cache(maxsize=2)
def _captured(task: str, seed: int) -> CapturedModel:
    return capture(TASKS[task].model, seed=seed)


def read_results(path: Path) -> list[Result]:
    """Return all results in ``path``, as :func:`benchmarks.cells.read_results_of` does."""
    return read_results_of("benchmarks.samples_to_loss", Result, path)
