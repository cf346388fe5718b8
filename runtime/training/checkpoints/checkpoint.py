"""What a checkpoint of a training holds, and the check that it holds just that."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import ConfigDict, Field, Strict, ValidationError
from torch import Tensor

from drlpp.errors import InvalidFile
from drlpp.io.documents import Record
from drlpp.runtime.training.training_reports import EpochReport
from drlpp.schedule.actions import MicrobatchId


class TrainingProgress(Record):
    """How far a training is.

    Attributes:
        epochs: reports of the whole epochs.
        began: the minibatch of the next epoch before which the pipeline was empty.
        position: the minibatches of that epoch before this number are done.
        losses: of their parts.
        evaluated: whether the last whole epoch has been.
    """

    # A held-out loss may be infinite or not a number.
    model_config = ConfigDict(allow_inf_nan=True, arbitrary_types_allowed=True)

    epochs: tuple[EpochReport, ...] = ()
    began: int = Field(default=0, ge=0)
    position: int = Field(default=0, ge=0)
    losses: dict[MicrobatchId, float] = Field(default_factory=dict)
    evaluated: bool = True


class TrainingCheckpoint(TrainingProgress):
    """A training between two minibatches: how far it is, and what continues it.

    Attributes:
        model: weights and buffers by name.
        optimizer: its state by parameter.
        in_flight: what every worker has in flight.
        deployed: the placement and method that ``in_flight`` suits.
        data: states of the loader's generators, and a hash of the epoch's first minibatch.
    """

    # Without a default: a file that lacks one of these is damaged.
    epochs: tuple[EpochReport, ...]
    began: int = Field(ge=0)
    position: int = Field(ge=0)
    losses: dict[MicrobatchId, float]
    model: dict[str, Tensor]
    optimizer: dict[str, dict[str, Any]]
    in_flight: dict[Annotated[int, Strict()], dict[str, Any]]
    deployed: str
    data: tuple[tuple[Tensor, ...], str]

    @property
    def progress(self) -> TrainingProgress:
        """How far the training is, without its tensors."""
        return TrainingProgress(**{n: getattr(self, n) for n in TrainingProgress.model_fields})


def checked_checkpoint(
    path: object, saved: Any, state: Mapping[str, Tensor], minibatches: int
) -> TrainingCheckpoint:
    """Return what was read as a checkpoint for a training of a model with this state.

    Raises:
        InvalidFile: it is damaged, or not of such a training.
    """
    try:
        found = TrainingCheckpoint.model_validate(saved)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "its content"
        raise InvalidFile(
            f"{path}: not a checkpoint of drlpp train ({where}: {first['msg']})"
        ) from None
    if reason := _contradiction(found, state, minibatches):
        raise InvalidFile(f"{path}: not a checkpoint of this training: {reason}")
    return found


def _contradiction(
    found: TrainingCheckpoint, state: Mapping[str, Tensor], minibatches: int
) -> str | None:
    """Return what does not fit into a training of a model with this state, None if all does."""
    kinds = [{n: (v.shape, v.dtype) for n, v in of.items()} for of in (found.model, state)]
    if kinds[0] != kinds[1]:
        return "its model has other weights than this one"
    if [report.epoch for report in found.epochs] != list(range(1, len(found.epochs) + 1)):
        return "its epochs are not numbered from 1"
    if not found.evaluated and (found.position or not found.epochs):
        return "its last epoch is not evaluated, but it is not at the end of one"
    if not found.began <= found.position < minibatches:
        return (
            f"it began at minibatch {found.began} and is at {found.position} of an epoch of "
            f"{minibatches}"
        )
    if not {minibatch for minibatch, _ in found.losses} >= set(range(found.position)):
        return f"it has not all losses of the {found.position} minibatches that are done"
    return None


def read_best_weights(path: Path, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Read the weights of the best epoch of a training of a model with this state.

    Raises:
        InvalidFile: they are missing, damaged, or of another model.
    """
    try:
        found: dict[str, Tensor] = torch.load(path, weights_only=True)
        if {n: v.shape for n, v in found.items()} != {n: v.shape for n, v in state.items()}:
            raise InvalidFile("it has other weights than the model")
    # Whatever a damaged file makes torch say.
    except Exception as error:
        raise InvalidFile(
            f"{path}: the weights of the best epoch so far cannot be read "
            f"({' '.join(str(error).split())[:200]}); put the file back, or train in another folder"
        ) from None
    return found
