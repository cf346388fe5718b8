"""A training that loses a host and gets it back, and the same training without any loss."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Protocol

from torch import Tensor

from benchmarks.deep_models import decoder, even_stages, spread, topics_text
from drlpp import Elastic
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.errors import RunFailure
from drlpp.io.documents import Record
from drlpp.io.run_folder import CHANGES_NAME
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.placement_file import PlacementFile
from drlpp.runtime import ClusterSession, TrainerCallbacks
from drlpp.runtime.training.changes_file import WorkersChanged, read_changes
from drlpp.runtime.training.data.samples_in_memory import SamplesInMemory
from drlpp.runtime.training.elastic_training import ElasticTraining
from drlpp.runtime.training.trainer import Trainer
from drlpp.runtime.training.training_plan import TrainingPlan
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Cluster, Host, Link
from drlpp.specs.data import Data
from drlpp.specs.optimizer_spec import OptimizerSpec

HOSTS = Cluster(
    hosts=(Host(name="host", count=2, accelerators=2, speed=0.4),),
    within_host=Link(bandwidth_bytes_per_second=1.25e9),
    between_hosts=Link(bandwidth_bytes_per_second=1.25e8),
)
WORKERS = HOSTS.accelerators
_LENGTH = 32
_OPTIMIZER = OptimizerSpec(name="adam", options={"lr": 0.0001})

Replan = Callable[[], ExecutionPlan | None]


class TrialHosts(Protocol):
    """Two hosts of two workers for the sessions of a trial, the last of which can be lost.

    Attributes:
        lost_by: what becomes of a host that is lost.
    """

    lost_by: str

    @property
    def cluster(self) -> str | None:
        """Address of the Ray cluster that they are; None for this machine."""

    def used(self) -> AbstractContextManager[None]:
        """Let a session that begins in the block run its workers here."""

    def lose(self) -> None:
        """Lose the last host; from any thread."""

    def return_(self) -> None:
        """Let it be there again, or begin to."""


class Trial(Record):
    """A host was lost at a random moment, and came back.

    Attributes:
        policy: of weights, on 1F1B.
        lost_by: what became of the host.
        parameters: of the model.
        planned_seconds: from the loss until there was a plan for what was left.
        again_seconds: from the loss until minibatches were done again on it.
        grown_seconds: from the return until minibatches were done on all workers again; that waits
            for a checkpoint.
        minibatches: of the training.
        largest_difference: of weights, from a training whose placement changed at the same
            minibatches without any loss, relative to each tensor's largest value.
    """

    policy: str
    lost_by: str
    parameters: int
    planned_seconds: float
    again_seconds: float
    grown_seconds: float
    minibatches: int
    largest_difference: float


@dataclass(frozen=True)
class Task:
    """What is trained: the decoder of characters of :mod:`benchmarks.deep_models`.

    Attributes:
        captured: the model.
        document: its even placement on all workers.
        data: to train on.
        plan: how long, and how often a checkpoint is written.
    """

    captured: CapturedModel
    document: PlacementFile
    data: Data
    plan: TrainingPlan

    @classmethod
    def of(
        cls,
        width: int,
        blocks: int,
        batch_size: int,
        minibatches: int,
        checkpoint_every: int,
        method: Method,
    ) -> Task:
        """Return the task for a decoder of this size."""
        captured = capture(decoder(batch_size, width, blocks, _LENGTH))
        text = topics_text(_LENGTH)
        data = Data(spread(text.train, minibatches * batch_size), spread(text.test, 2 * batch_size))
        document = PlacementFile.create(
            captured.reference,
            captured.graph,
            even_stages(captured.graph, WORKERS),
            HOSTS,
            method=method,
            optimizer=_OPTIMIZER,
            found_by="even cut",
        )
        return cls(captured, document, data, TrainingPlan(2, checkpoint_every=checkpoint_every))

    @property
    def parameters(self) -> int:
        """Of the model."""
        return sum(self.captured.state[name].numel() for name in self.captured.trained)

    @contextmanager
    def trainer(
        self, folder: Path, observer: TrainerCallbacks, cluster: str | None = None
    ) -> Iterator[Trainer]:
        """Lend a trainer on workers of its own, on this machine or on a Ray cluster."""
        with ClusterSession(
            self.captured,
            WORKERS,
            method=self.document.method,
            optimizer=_OPTIMIZER,
            device="cpu",
            cluster=cluster,
            hosts=self.document.cluster if cluster else None,
        ) as session:
            data = SamplesInMemory(None, self.data, self.captured.task.batch_size, seed=0)
            yield Trainer(session, data, folder, self.plan, observer)


class _Clock:
    """Notes when what happened first."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}

    def note(self, what: str, *, after: str | None = None) -> None:
        if what not in self.at and (after is None or after in self.at):
            self.at[what] = time.perf_counter()

    def between(self, begin: str, end: str) -> float:
        if end not in self.at:
            raise RunFailure(f"training ended before it was {end}; give it more minibatches")
        return self.at[end] - self.at[begin]


def run_trial(task: Task, folder: Path, seed: int, hosts: TrialHosts) -> Trial:
    """Lose a host in the middle of a training, get it back, and compare."""
    clock, draw = _Clock(), random.Random(seed)
    timers: list[Timer] = []

    def on_note(note: str) -> None:
        clock.note("planned", after="lost")
        if len(trainer.session.present) == WORKERS:
            clock.note("grown", after="returned")

    def done() -> None:
        clock.note("again", after="planned")
        clock.note("all again", after="grown")

    def lose() -> None:
        clock.note("lost")
        hosts.lose()

    def after_checkpoint() -> None:
        done()
        clock.note("first checkpoint")
        if "lost" not in clock.at and not timers:
            # At any moment of what follows on the checkpoint.
            timers.append(Timer(draw.random() * segment_seconds(), lose))
            timers[-1].start()
        elif "again" in clock.at and "returned" not in clock.at:
            clock.note("returned")
            hosts.return_()

    def segment_seconds() -> float:
        return clock.between("begun", "first checkpoint")

    observer = TrainerCallbacks(
        on_begin=lambda: None, on_progress=lambda report: done(), on_note=on_note
    )
    lost = folder / "lost"
    lost.mkdir()
    with hosts.used(), task.trainer(lost, observer, hosts.cluster) as trainer:
        planner = Elastic(1, WORKERS).planner(task.document, task.captured.graph, None)
        training = ElasticTraining(trainer, Elastic(1, WORKERS), planner)
        trainer.replan = _before(after_checkpoint, trainer.replan)
        clock.note("begun")
        found = training.train()
    for timer in timers:
        timer.join()
    changes = read_changes(lost / CHANGES_NAME)
    wanted = _by_hand(task, folder / "by-hand", changes)
    return Trial(
        policy=task.document.method.policy,
        lost_by=hosts.lost_by,
        parameters=task.parameters,
        planned_seconds=clock.between("lost", "planned"),
        again_seconds=clock.between("lost", "again"),
        grown_seconds=clock.between("returned", "all again"),
        minibatches=2 * trainer.data.minibatches,
        largest_difference=_largest_difference(found, wanted),
    )


def _before(first: Callable[[], None], then: Replan | None) -> Replan:
    def both() -> ExecutionPlan | None:
        first()
        assert then is not None
        return then()

    return both


def _by_hand(task: Task, folder: Path, changes: Sequence[WorkersChanged]) -> dict[str, Tensor]:
    """Train with the same placements up to the same minibatches, on workers that nobody takes."""
    folder.mkdir()
    planner = Elastic(1, WORKERS).planner(task.document, task.captured.graph, None)
    quiet = TrainerCallbacks(on_other_placement=lambda: None)
    plan = planner.plan(range(WORKERS), WORKERS)
    with task.trainer(folder, quiet) as trainer:
        for change in changes:
            done = change.epochs * trainer.data.minibatches + change.minibatches
            if done:
                trainer.train_until(plan, done)
            plan = planner.plan(change.workers, WORKERS)
        return trainer.train(plan)


def _largest_difference(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    differences = (
        float((found[name] - value).abs().max() / value.abs().max().clamp(min=1e-12))
        for name, value in wanted.items()
        if value.is_floating_point()
    )
    largest = max(differences)
    return math.inf if math.isnan(largest) else largest
