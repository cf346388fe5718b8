"""Training runs of the study: what one is, how it is done, and the file of their results."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.cells import read_results_of
from benchmarks.deep_models import even_stages
from benchmarks.statistical_efficiency.methods import METHODS
from benchmarks.statistical_efficiency.tasks import BATCH_SIZE, TASKS
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.io.documents import Record
from drlpp.runtime import Minibatches, run_reference
from drlpp.specs.data import Data
from drlpp.specs.optimizer_spec import OptimizerSpec

DEPTHS = (4, 8, 16)
SEEDS = (0, 1, 2, 3, 4)
SEARCH_SEED = 100

# Momentum and weight decay are those of pipeoptim §V-A and §V-B; the rest is torch's default.
OPTIONS: dict[str, dict[str, float]] = {
    "sgd": {"momentum": 0.9, "weight_decay": 5e-4},
    "adam": {},
    "adamw": {},
}


class Job(Record):
    """One training run. ``depth`` is None for a method that it does not concern."""

    task: str
    optimizer: str
    learning_rate: float
    method: str
    depth: int | None
    seed: int


class Result(Record):
    """What came out of a job. Numbers that are not finite are None.

    Attributes:
        loss: on the held-out samples after the last update, in nats.
        accuracy: on the same samples, between 0 and 1; None for a task that is scored by its loss.
        training_loss: mean over the last tenth of the run.
        seconds: that the run took in one process.
    """

    job: Job
    loss: float | None
    accuracy: float | None
    training_loss: float | None
    seconds: float

    @property
    def diverged(self) -> bool:
        """Whether a loss is not finite, or the model trains worse than guessing in the end."""
        guessing = TASKS[self.job.task].guessing_loss
        return self.loss is None or self.training_loss is None or self.training_loss > guessing


def study_jobs(
    rates: dict[tuple[str, str], float],
    methods: Iterable[str],
    depths: Sequence[int] = DEPTHS,
    seeds: Sequence[int] = SEEDS,
) -> list[Job]:
    """Return every method with every task and optimizer in ``rates``, depth and seed.

    All methods train with the learning rate that suits GPipe, as in the paper.
    """
    return [
        Job(
            task=task,
            optimizer=optimizer,
            learning_rate=rate,
            method=method,
            depth=depth,
            seed=seed,
        )
        for ((task, optimizer), rate), seed, method in itertools.product(
            rates.items(), seeds, methods
        )
        for depth in ([None] if METHODS[method].stages else depths)
    ]


def search_jobs() -> list[Job]:
    """Return GPipe at every learning rate to try, with a seed that the study does not use."""
    return [
        Job(
            task=name,
            optimizer=optimizer,
            learning_rate=rate,
            method="GPipe",
            depth=None,
            seed=SEARCH_SEED,
        )
        for name, task in TASKS.items()
        for optimizer in OPTIONS
        for rate in task.rates[optimizer]
    ]


def best_rate(results: Iterable[Result]) -> float:
    """Return the learning rate for one task and optimizer, from searches at several.

    The one with the lowest held-out loss, of those that are at most a tenth of the lowest at which
    training diverges: a rate on the edge of stability without delay leaves nothing to compare with
    it, as every asynchronous method diverges.
    """
    found = list(results)
    edge = min((r.job.learning_rate for r in found if r.diverged), default=math.inf)
    losses = {
        r.job.learning_rate: r.loss
        for r in found
        if r.loss is not None and r.job.learning_rate <= edge / 10
    }
    return min(losses, key=losses.__getitem__)


def minibatch_order(samples: int, epochs: int, seed: int) -> Tensor:
    """Return the samples of all minibatches, ``(minibatches, BATCH_SIZE)``.

    They are shuffled anew in every epoch.

    What does not fill a minibatch is left out of the epoch.
    """
    generator = torch.Generator().manual_seed(seed)
    full = samples // BATCH_SIZE * BATCH_SIZE
    shuffled = [torch.randperm(samples, generator=generator)[:full] for _ in range(epochs)]
    return torch.cat(shuffled).view(-1, BATCH_SIZE)


def run_job(job: Job) -> Result:
    """Train in this process, with the weights that the method would give every stage."""
    started = time.perf_counter()
    task, method = TASKS[job.task], METHODS[job.method]
    data = _data(job.task)
    order = minibatch_order(len(data.train), task.epochs, job.seed)
    depth = job.depth or method.stages
    assert depth is not None
    captured = _captured(job.task, job.seed)
    trained = run_reference(
        captured,
        even_stages(captured.graph, depth),
        Minibatches(data.train.inputs, data.train.targets, order),
        len(order),
        method=method.build(len(order)),
        optimizer=OptimizerSpec.parse(
            job.optimizer, lr=job.learning_rate, **OPTIONS[job.optimizer]
        ),
        seed=job.seed,
    )
    losses = list(trained.losses.values())[-len(order) // 10 :]
    loss, accuracy = _evaluate(captured, trained.state, data)
    return Result(
        job=job,
        loss=_finite(loss),
        accuracy=accuracy,
        training_loss=_finite(sum(losses) / len(losses)),
        seconds=time.perf_counter() - started,
    )


@lru_cache(maxsize=1)
def _data(task: str) -> Data:
    return TASKS[task].load()


@lru_cache(maxsize=8)
def _captured(task: str, seed: int) -> CapturedModel:
    return capture(TASKS[task].reference(BATCH_SIZE), seed=seed)


def _evaluate(
    captured: CapturedModel, state: dict[str, Tensor], data: Data
) -> tuple[float, float | None]:
    """Return loss and accuracy on the held-out samples.

    The models do the same in training and after.
    """
    task = captured.task
    assert task.loss is not None
    with torch.no_grad():
        # The module's own weights are those that the next job of this seed starts from.
        outputs = torch.func.functional_call(task.module, state, data.test.inputs)
        loss = task.loss(outputs, data.test.targets).item()
        score = task.score(outputs, data.test.targets) if task.score else None
    return loss, None if score is None else score.mean().item()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def read_results(path: Path) -> list[Result]:
    """Return all results in ``path``, as :func:`benchmarks.cells.read_results_of` does."""
    return read_results_of("benchmarks.statistical_efficiency", Result, path)
