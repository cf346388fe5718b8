"""Training runs of the study: what one is, how it is done, and the file of their results."""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import lru_cache
from pathlib import Path

import torch

from benchmarks.deep_models import even_stages
from benchmarks.learning.curves import minibatches_to, shuffled
from benchmarks.learning.replay import Replay
from benchmarks.results_file import read_results_of
from benchmarks.samples_to_loss.methods import METHODS
from benchmarks.samples_to_loss.tasks import TASKS
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.io.documents import Record
from drlpp.io.json_lines import append
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


def run_all(
    next_jobs: Callable[[Sequence[Result]], Sequence[Job]],
    path: Path,
    processes: int,
    tell: Callable[[Result], None],
) -> None:
    """Run jobs until none is left, and append every result to ``path`` as it comes.

    Args:
        next_jobs: gives the jobs that are wanted, from all results so far.
        path: results, one in a line; made if there is none.
        processes: that run jobs at the same time, one thread each.
        tell: called with every new result.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    results = read_results(path)
    running: dict[Future[Result], Job] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, torch.set_num_threads, (1,)) as pool:
        try:
            while True:
                for job in next_jobs(results):
                    if job not in running.values():
                        running[pool.submit(run_job, job)] = job
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    result = future.result()
                    append(path, result)
                    tell(result)
                    results.append(result)
                    del running[future]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def read_results(path: Path) -> list[Result]:
    """Return all results in ``path``, as :func:`benchmarks.results_file.read_results_of` does."""
    return read_results_of("benchmarks.samples_to_loss", Result, path)
