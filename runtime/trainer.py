"""The loop over epochs, with checkpoints between any two minibatches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from drlpp.data import Data
from drlpp.errors import InvalidFile, NotFinite
from drlpp.learning_rate import LearningRateSchedule
from drlpp.optimizer_spec import OptimizerSpec
from drlpp.placement import Placement
from drlpp.runtime.checkpoint_file import read_checkpoint, write_checkpoint
from drlpp.runtime.commands import RunResult
from drlpp.runtime.deployment import Deployment
from drlpp.runtime.run_commands import RunOptions
from drlpp.runtime.session import ClusterSession
from drlpp.schedule import Part


@dataclass(frozen=True)
class EpochReport:
    """One epoch: mean training loss, mean score on held-out data, and speed.

    ``score`` is None where the model's task has none. For classifiers it is the accuracy.
    """

    epoch: int
    loss: float
    score: float | None
    minibatches_per_second: float


@dataclass(frozen=True)
class Observer:
    """Told how training goes: when it begins, every few minibatches, and after every epoch.

    ``on_other_placement`` is called if a checkpoint of another placement or method is gone on with.
    """

    on_begin: Callable[[], None] = lambda: None
    on_progress: Callable[[int, int, int], None] = lambda epoch, done, total: None
    on_epoch: Callable[[EpochReport], None] = lambda report: None
    on_other_placement: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class TrainingPlan:
    """What is trained for how long, beside the placement, its method and its optimizer.

    Attributes:
        epochs: how often all training samples are seen.
        seed: of the order of samples.
        learning_rate: changes the rate over time; None keeps it.
        synchronous_epochs: epochs at the beginning that flush before every update (W of PipeMare).
        checkpoint_every: minibatches between two checkpoints within an epoch; 0 for none. The
            pipeline goes on through them.
    """

    epochs: int
    seed: int = 0
    learning_rate: LearningRateSchedule | None = None
    synchronous_epochs: int = 0
    checkpoint_every: int = 0

    def rates(self, optimizer: OptimizerSpec, minibatches_per_epoch: int) -> list[float] | None:
        """The learning rate of every minibatch, None if it stays the optimizer's.

        Raises:
            InvalidInput: if the schedule does not suit the training.
        """
        if self.learning_rate is None:
            return None
        minibatches = self.epochs * minibatches_per_epoch
        return self.learning_rate.rates(
            float(optimizer.value("lr")), minibatches, minibatches_per_epoch
        )


@dataclass
class _Progress:
    """How far a training is.

    ``reports`` are of whole epochs. Of the next, the minibatches before number ``position`` are
    done, with these ``losses``, by a pipeline that was empty before number ``began``.
    """

    reports: list[EpochReport] = field(default_factory=list)
    began: int = 0
    position: int = 0
    losses: dict[Part, float] = field(default_factory=dict)


class Trainer:
    """Trains on a session's workers, and keeps ``checkpoint.safetensors`` in ``folder``.

    A checkpoint of the same placement and method goes on bit for bit as if nothing had happened,
    with the minibatches that were in flight. Under another placement or method, or where a stage
    has been cut differently, training goes on from the weights and the optimizer's state: the
    minibatches that were in flight are sent through the pipeline again. For methods that flush
    there are none, and that is exact as well.
    """

    def __init__(
        self,
        session: ClusterSession,
        data: Data,
        folder: Path,
        plan: TrainingPlan,
        observer: Observer,
    ) -> None:
        self.session = session
        self.data = data
        self.plan = plan
        self.observer = observer
        self.checkpoint = folder / "checkpoint.safetensors"
        self.folder = folder
        self._batch = session.captured.task.batch_size
        self._count = len(data.train) // self._batch
        self._progress = _Progress()
        self._rates = plan.rates(session.optimizer, self._count)
        # Training and held-out samples are one set for the workers, told apart by their indices.
        session.use_samples(
            [torch.cat(pair) for pair in zip(data.train.inputs, data.test.inputs, strict=True)],
            torch.cat([data.train.targets, data.test.targets]),
        )

    @property
    def reports(self) -> tuple[EpochReport, ...]:
        """Of all epochs so far."""
        return tuple(self._progress.reports)

    def train(self, placement: Placement) -> dict[str, Tensor]:
        """Train up to the last epoch and return the state_dict."""
        saved = self._restore()
        same = saved is not None and saved["deployed"] == _identity(placement, self.session)
        deployment = self.session.deploy(
            placement, checkpoint=self.checkpoint if saved else None, in_flight=same
        )
        if saved is not None and not same:
            self.observer.on_other_placement()
        goes_on = same and self._progress.position > 0
        state: dict[str, Tensor] = {}
        with SummaryWriter(str(self.folder)) as board:
            for epoch in range(len(self._progress.reports) + 1, self.plan.epochs + 1):
                with self._telling_how_to_stay_finite(epoch):
                    report = self._epoch(deployment, epoch, board, goes_on=goes_on)
                goes_on = False
                self._progress = _Progress([*self._progress.reports, report])
                with self._telling_how_to_stay_finite(epoch):
                    state = self._save(deployment)
                self.observer.on_epoch(report)
        return state or self.session.collect(deployment)[0]

    def _restore(self) -> Mapping[str, Any] | None:
        if not self.checkpoint.exists():
            if (older := self.folder / "checkpoint.pt").exists():
                raise InvalidFile(
                    f"{older}: a checkpoint of an older drlpp, which this one cannot read; go on "
                    "with that version, or begin in another folder"
                )
            return None
        saved = read_checkpoint(self.checkpoint)
        try:
            self._progress = _Progress(
                [EpochReport(**report) for report in saved["epochs"]],
                saved["began"],
                saved["position"],
                saved["losses"],
            )
        except Exception as error:
            raise InvalidFile(
                f"{self.checkpoint}: not a checkpoint of drlpp train ({type(error).__name__})"
            ) from None
        return saved

    @contextmanager
    def _telling_how_to_stay_finite(self, epoch: int) -> Iterator[None]:
        try:
            yield
        except NotFinite as error:
            kept = f"; {self.checkpoint} has finite weights" if self.checkpoint.exists() else ""
            raise NotFinite(
                f"training diverged in epoch {epoch}: {error} (counted from 1 since training "
                "began); a lower learning rate, a warm_up, clip_norm, synchronous epochs or "
                f"float32 may help{kept}"
            ) from None

    def _save(self, deployment: Deployment) -> dict[str, Tensor]:
        saved = self.session.checkpoint(deployment)
        for name in saved["optimizer"]:
            if not saved["model"][name].isfinite().all():
                raise NotFinite(f"parameter {name} has values that are not finite")
        saved["deployed"] = _identity(deployment.placement, self.session)
        saved["epochs"] = [asdict(report) for report in self._progress.reports]
        saved["began"] = self._progress.began
        saved["position"] = self._progress.position
        saved["losses"] = self._progress.losses
        write_checkpoint(self.checkpoint, saved)
        return saved["model"]

    def _epoch(
        self, deployment: Deployment, epoch: int, board: SummaryWriter, *, goes_on: bool
    ) -> EpochReport:
        order = self._order(epoch)
        done = self._progress.position
        # A pipeline that goes on does what it would have done; another one begins where it ended.
        began = self._progress.began if goes_on else done
        before = dict(self._progress.losses)
        first = (epoch - 1) * self._count + began
        options = RunOptions(
            order=order[began:],
            rates=self._rates[first:] if self._rates is not None else None,
            first_minibatch=first,
            asynchronous_before=max(0, first - self.plan.synchronous_epochs * self._count),
            synchronous=epoch <= self.plan.synchronous_epochs,
            finite=True,
        )

        def save(cut: int, results: Mapping[int, RunResult]) -> None:
            losses = before | _losses(results, began)
            self._progress = _Progress(self._progress.reports, began, began + cut, losses)
            self._save(deployment)

        begin = time.perf_counter()
        _, results = self.session.run(
            deployment,
            self._count - began,
            options,
            on_progress=lambda through: self.observer.on_progress(
                epoch, began + through, self._count
            ),
            cuts=self._cuts(deployment, began),
            start=done - began if goes_on else None,
            on_cut=save,
        )
        seconds = time.perf_counter() - begin
        losses = before | _losses(results, began)
        of_minibatch = _mean_losses(losses)
        for minibatch, loss in enumerate(of_minibatch):
            step = (epoch - 1) * self._count + minibatch
            board.add_scalar("train/loss", loss, step)
        report = EpochReport(
            epoch=epoch,
            loss=sum(of_minibatch) / len(of_minibatch),
            score=self._evaluate(deployment),
            minibatches_per_second=(self._count - done) / seconds,
        )
        board.add_scalar("time/minibatches_per_second", report.minibatches_per_second, epoch)
        if report.score is not None:
            board.add_scalar("eval/score", report.score, epoch)
        return report

    def _order(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.plan.seed * 1_000_003 + epoch)
        shuffled = torch.randperm(len(self.data.train), generator=generator)
        return shuffled[: self._count * self._batch].view(self._count, self._batch)

    def _cuts(self, deployment: Deployment, began: int) -> list[int]:
        """Places where every stage has just made an update of all minibatches so far."""
        if not self.plan.checkpoint_every:
            return []
        together = deployment.method.minibatches_together(deployment.pipeline)
        every = -(-self.plan.checkpoint_every // together) * together
        return list(range(every, self._count - began, every))

    def _evaluate(self, deployment: Deployment) -> float | None:
        if self.session.captured.score is None:
            return None
        order = whole_minibatches(len(self.data.test), self._batch)
        scores = self.session.evaluate(deployment, order + len(self.data.train))
        return scores.flatten()[: len(self.data.test)].float().mean().item()


def whole_minibatches(samples: int, batch: int) -> Tensor:
    """Indices of all samples in minibatches; the last is filled up with samples seen before."""
    count = -(-samples // batch)
    return (torch.arange(count * batch) % samples).view(count, batch)


def _losses(results: Mapping[int, RunResult], began: int) -> dict[Part, float]:
    """The loss of every part, numbered from the beginning of the epoch."""
    return {
        (minibatch + began, microbatch): loss
        for result in results.values()
        for (minibatch, microbatch), loss in result.losses.items()
    }


def _mean_losses(losses: Mapping[Part, float]) -> list[float]:
    """Of every minibatch, the mean over its parts; their number may change on resuming."""
    parts: dict[int, list[float]] = {}
    for (minibatch, _), loss in losses.items():
        parts.setdefault(minibatch, []).append(loss)
    return [sum(of_one) / len(of_one) for _, of_one in sorted(parts.items())]


def _identity(placement: Placement, session: ClusterSession) -> str:
    """What two checkpoints have in common whose parts in flight suit each other."""
    return f"{placement.model_dump_json()} {session.method.model_dump_json()}"
