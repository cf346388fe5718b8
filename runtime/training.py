"""Training a model with a placement: what is given is checked, then a trainer does the work."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from drlpp.capture import capture, microbatch_size
from drlpp.data import Samples, load_data
from drlpp.errors import InvalidInput, InvalidPlacement
from drlpp.files import replacing
from drlpp.learning_rate import LearningRateSchedule
from drlpp.optimizer_spec import OptimizerSpec
from drlpp.placement_file import PlacementFile, read_placement
from drlpp.run_folder import open_run_folder
from drlpp.runtime.deployment import stage_delays
from drlpp.runtime.session import ClusterSession
from drlpp.runtime.trainer import EpochReport, Observer, Trainer, TrainingPlan, whole_minibatches
from drlpp.training_options import DeviceChoice, Method


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


def train(
    placement: str | Path | PlacementFile,
    *,
    data: str = "digits",
    epochs: int = 5,
    method: Method | None = None,
    optimizer: OptimizerSpec | None = None,
    learning_rate: LearningRateSchedule | None = None,
    synchronous_epochs: int = 0,
    checkpoint_every: int = 0,
    workers: int | None = None,
    device: str = DeviceChoice.AUTO,
    out: str | Path,
    resume: bool = False,
    seed: int = 0,
    observer: Observer | None = None,
) -> TrainingResult:
    """Train the model of a placement with that placement, on worker processes of this machine.

    Writes ``checkpoint.pt`` after every epoch and every ``checkpoint_every`` minibatches,
    ``model.pt`` (a state_dict) at the end, and TensorBoard's events into ``out``.

    Args:
        placement: a placement file or its path.
        data: a name (``digits``) or ``package.module:factory``.
        epochs: how often all training samples are seen.
        method: instead of the one that the placement was measured with.
        optimizer: likewise.
        learning_rate: changes the learning rate over time.
        synchronous_epochs: epochs at the beginning that flush before every update, so that nothing
            is stale while the model is young (W of PipeMare).
        checkpoint_every: minibatches between two checkpoints within an epoch; 0 for none. It is
            rounded up to whole updates of all stages. Weights of minibatches in flight are kept
            around a checkpoint, which takes memory that the method itself does not need.
        workers: how many; has to be the number that the placement knows, which is the default.
        device: that workers compute on, as in :class:`~drlpp.runtime.ClusterSession`; a checkpoint
            goes on on any.
        out: folder for the results.
        resume: go on from the last checkpoint in ``out``, exactly as if nothing had happened; under
            another placement or method as :class:`~drlpp.runtime.trainer.Trainer` says.
        seed: of weights, order of samples, and dropout.
        observer: told how it goes.

    Raises:
        InvalidInput: anything given does not fit.
        RunFailure: the workers failed; ``out`` holds the last checkpoint.
    """
    document = placement if isinstance(placement, PlacementFile) else read_placement(placement)
    if epochs < 1:
        raise InvalidInput(f"epochs is {epochs}; at least 1 is needed")
    for name, number in (
        ("synchronous_epochs", synchronous_epochs),
        ("checkpoint_every", checkpoint_every),
    ):
        if number < 0:
            raise InvalidInput(f"{name} is {number}; 0 or more is expected")
    known = document.cluster.accelerators
    if workers is not None and workers != known:
        raise InvalidPlacement(
            f"{workers} workers were asked for, but the placement is for {known}; leave out "
            "--workers, or learn a placement for that number"
        )
    method = method or document.method
    optimizer = optimizer or document.optimizer
    optimizer.check()
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
    plan = TrainingPlan(epochs, seed, learning_rate, synchronous_epochs, checkpoint_every)
    # Whatever cannot work is told before the folder is claimed.
    plan.rates(optimizer, len(samples.train) // captured.task.batch_size)
    microbatch_size(captured.task, method.microbatches)
    stage_delays(resolved.pipeline(captured.graph), method, resolved.configuration)
    settings = {
        "model": document.model.model_dump(),
        "graph_fingerprint": document.graph_fingerprint,
        "data": data,
        "optimizer": optimizer.model_dump(),
        "learning_rate": learning_rate.model_dump() if learning_rate else None,
        "synchronous_epochs": synchronous_epochs,
        "seed": seed,
    }
    folder = open_run_folder(Path(out), "drlpp train", settings, resume=resume)
    with ClusterSession(
        captured, known, method=method, optimizer=optimizer, seed=seed, device=device
    ) as session:
        trainer = Trainer(session, samples, folder, plan, observer)
        observer.on_begin()
        state = trainer.train(resolved)
    with replacing(folder / "model.pt") as path:
        torch.save(state, path)
    return TrainingResult(
        state_dict=state,
        epochs=trainer.reports,
        module_score=_score_of_module(document, state, samples.test, captured.task.batch_size),
        folder=folder,
    )


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
        for indices in whole_minibatches(len(test), batch):
            outputs = task.module(*(value[indices] for value in test.inputs))
            scores.append(task.score(outputs, test.targets[indices]))
    return torch.cat(scores)[: len(test)].float().mean().item()
