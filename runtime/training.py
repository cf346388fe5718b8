"""Training a model with a placement: epochs, evaluation on held-out data, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from drlpp.capture import capture
from drlpp.data import Data, Samples, load_data
from drlpp.errors import InvalidFile, InvalidInput, InvalidPlacement
from drlpp.files import replacing
from drlpp.optimizer_spec import OptimizerSpec
from drlpp.placement_file import PlacementFile, read_placement
from drlpp.run_folder import open_run_folder
from drlpp.runtime.deployment import Deployment
from drlpp.runtime.session import ClusterSession


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
class TrainingResult:
    """What training gives.

    ``state_dict`` loads into the user's own module; ``module_score`` is the score of that module
    on the held-out data, computed in this process without the pipeline.
    """

    state_dict: dict[str, Tensor]
    epochs: tuple[EpochReport, ...]
    module_score: float | None
    folder: Path


@dataclass(frozen=True)
class Observer:
    """Told how training goes: when it begins, every few minibatches, and after every epoch."""

    on_begin: Callable[[], None] = lambda: None
    on_progress: Callable[[int, int, int], None] = lambda epoch, done, total: None
    on_epoch: Callable[[EpochReport], None] = lambda report: None


def train(
    placement: str | Path | PlacementFile,
    *,
    data: str = "digits",
    epochs: int = 5,
    optimizer: OptimizerSpec | None = None,
    workers: int | None = None,
    out: str | Path,
    resume: bool = False,
    seed: int = 0,
    observer: Observer | None = None,
) -> TrainingResult:
    """Train the model of a placement with that placement, on worker processes of this machine.

    Writes ``checkpoint.pt`` after every epoch, ``model.pt`` (a state_dict) at the end, and
    TensorBoard's events into ``out``.

    Args:
        placement: a placement file or its path.
        data: a name (``digits``) or ``package.module:factory``.
        epochs: how often all training samples are seen.
        optimizer: instead of the one that the placement was measured with.
        workers: how many; has to be the number that the placement knows, which is the default.
        out: folder for the results.
        resume: go on from the last checkpoint in ``out``.
        seed: of weights, order of samples, and dropout.
        observer: told how it goes.

    Raises:
        InvalidInput: anything given does not fit.
        RunFailure: the workers failed; ``out`` holds the checkpoint of the last whole epoch.
    """
    document = placement if isinstance(placement, PlacementFile) else read_placement(placement)
    if epochs < 1:
        raise InvalidInput(f"epochs is {epochs}; at least 1 is needed")
    known = document.cluster.accelerators
    if workers is not None and workers != known:
        raise InvalidPlacement(
            f"{workers} workers were asked for, but the placement is for {known}; leave out "
            "--workers, or learn a placement for that number"
        )
    optimizer = optimizer or document.optimizer
    captured = capture(document.model, seed=seed)
    try:
        resolved = document.resolve(captured.graph)
    except InvalidPlacement as error:
        if isinstance(placement, PlacementFile):
            raise
        raise InvalidPlacement(f"{placement}: {error}") from None
    observer = observer or Observer()
    if captured.task.loss is None:
        raise InvalidInput(
            f"model {document.model} has no loss to train with; let its factory return "
            "(module, inputs, targets, loss)"
        )
    samples = load_data(data, captured.task.inputs, captured.task.targets)
    settings = {
        "model": document.model.model_dump(),
        "graph_fingerprint": document.graph_fingerprint,
        "stages": [stage.model_dump(mode="json") for stage in document.stages],
        "method": document.method.model_dump(),
        "data": data,
        "optimizer": optimizer.model_dump(),
        "seed": seed,
    }
    folder = open_run_folder(Path(out), "drlpp train", settings, resume=resume)
    with ClusterSession(
        captured, known, method=document.method, optimizer=optimizer, seed=seed
    ) as session:
        trainer = _Trainer(session, samples, folder, seed, observer)
        observer.on_begin()
        state = trainer.train(resolved, epochs)
    with replacing(folder / "model.pt") as path:
        torch.save(state, path)
    return TrainingResult(
        state_dict=state,
        epochs=tuple(trainer.reports),
        module_score=_score_of_module(document, state, samples.test, captured.task.batch_size),
        folder=folder,
    )


class _Trainer:
    """The loop over epochs."""

    def __init__(
        self,
        session: ClusterSession,
        data: Data,
        folder: Path,
        seed: int,
        observer: Observer,
    ) -> None:
        self.session = session
        self.data = data
        self.seed = seed
        self.observer = observer
        self.reports: list[EpochReport] = []
        self.checkpoint = folder / "checkpoint.pt"
        self.folder = folder
        # Training and held-out samples are one set for the workers, told apart by their indices.
        session.use_samples(
            [torch.cat(pair) for pair in zip(data.train.inputs, data.test.inputs, strict=True)],
            torch.cat([data.train.targets, data.test.targets]),
        )

    def train(self, placement: Any, epochs: int) -> dict[str, Tensor]:
        """Train up to epoch ``epochs`` and return the state_dict."""
        checkpoint = self.checkpoint if self._restore() else None
        deployment = self.session.deploy(placement, checkpoint=checkpoint)
        state: dict[str, Tensor] = {}
        with SummaryWriter(str(self.folder)) as board:
            for epoch in range(len(self.reports) + 1, epochs + 1):
                report = self._epoch(deployment, epoch, board)
                self.reports.append(report)
                state = self._save(deployment)
                self.observer.on_epoch(report)
        return state or self.session.collect(deployment)[0]

    def _restore(self) -> bool:
        if not self.checkpoint.exists():
            return False
        try:
            saved = torch.load(self.checkpoint, mmap=True, weights_only=True)
            self.reports = [EpochReport(**report) for report in saved["epochs"]]
        except Exception as error:
            raise InvalidFile(
                f"{self.checkpoint}: not a checkpoint of drlpp train ({type(error).__name__})"
            ) from None
        return True

    def _save(self, deployment: Deployment) -> dict[str, Tensor]:
        model, optimizer = self.session.collect(deployment)
        saved = {
            "model": model,
            "optimizer": optimizer,
            "epochs": [asdict(report) for report in self.reports],
        }
        with replacing(self.checkpoint) as path:
            torch.save(saved, path)
        return model

    def _epoch(self, deployment: Deployment, epoch: int, board: SummaryWriter) -> EpochReport:
        batch = self.session.captured.task.batch_size
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        shuffled = torch.randperm(len(self.data.train), generator=generator)
        count = len(shuffled) // batch
        order = shuffled[: count * batch].view(count, batch)
        begin = time.perf_counter()
        schedule, results = self.session.run(
            deployment,
            count,
            order,
            lambda done: self.observer.on_progress(epoch, done, count),
            first_minibatch=(epoch - 1) * count,
        )
        seconds = time.perf_counter() - begin
        losses = {part: loss for result in results.values() for part, loss in result.losses.items()}
        for minibatch in range(count):
            parts = [losses[minibatch, part] for part in range(schedule.microbatches)]
            step = (epoch - 1) * count + minibatch
            board.add_scalar("train/loss", sum(parts) / len(parts), step)
        report = EpochReport(
            epoch=epoch,
            loss=sum(losses.values()) / len(losses),
            score=self._evaluate(deployment),
            minibatches_per_second=count / seconds,
        )
        board.add_scalar("time/minibatches_per_second", report.minibatches_per_second, epoch)
        if report.score is not None:
            board.add_scalar("eval/score", report.score, epoch)
        return report

    def _evaluate(self, deployment: Deployment) -> float | None:
        if self.session.captured.score is None:
            return None
        order = _whole_minibatches(len(self.data.test), self.session.captured.task.batch_size)
        scores = self.session.evaluate(deployment, order + len(self.data.train))
        return scores.flatten()[: len(self.data.test)].float().mean().item()


def _whole_minibatches(samples: int, batch: int) -> Tensor:
    """Indices of all samples in minibatches; the last is filled up with samples seen before."""
    count = -(-samples // batch)
    return (torch.arange(count * batch) % samples).view(count, batch)


def _score_of_module(
    document: PlacementFile, state: dict[str, Tensor], test: Samples, batch: int
) -> float | None:
    """The score of the user's own module with the trained weights, without any pipeline."""
    task = document.model.build()
    task.module.load_state_dict(state)
    if task.score is None:
        return None
    task.module.eval()
    scores = []
    with torch.no_grad():
        for indices in _whole_minibatches(len(test), batch):
            outputs = task.module(*(value[indices] for value in test.inputs))
            scores.append(task.score(outputs, test.targets[indices]))
    return torch.cat(scores)[: len(test)].float().mean().item()
