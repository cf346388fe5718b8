"""What a training reports."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class EpochReport:
    """One epoch: mean training loss, how it does on held-out data, and speed.

    ``held_out_loss`` and ``score`` are means over all held-out samples, None where there are none;
    ``score`` also where the model's task has no score. For classifiers it is the accuracy.
    """

    epoch: int
    loss: float
    held_out_loss: float | None
    score: float | None
    minibatches_per_second: float


@dataclass(frozen=True)
class ProgressReport:
    """Within an epoch: how many of its minibatches are done, their loss of late, and speed."""

    epoch: int
    done: int
    minibatches: int
    loss: float
    minibatches_per_second: float


@dataclass(frozen=True)
class Stint:
    """A part of a training: how long it took, without evaluations, and how good the model is now.

    Attributes:
        first, done: how many minibatches were done before it, and are done after it.
        seconds: of this part alone.
        held_out_loss, score: on the held-out data, None where there are none.
    """

    first: int
    done: int
    seconds: float
    held_out_loss: float | None
    score: float | None


OTHER_PLACEMENT = (
    "the checkpoint is of another placement or method: its weights are gone on with, and "
    "minibatches that were in flight are sent again"
)


@dataclass(frozen=True)
class TrainerCallbacks:
    """Hears how training goes: when it begins, every few minibatches, and after every epoch.

    ``on_other_placement`` is called if a checkpoint of another placement or method is resumed,
    ``on_note`` with a sentence about the data, or about an epoch, that a user should know. Both
    warn if nothing else is given.
    """

    on_begin: Callable[[], None] = lambda: None
    on_progress: Callable[[ProgressReport], None] = lambda report: None
    on_epoch: Callable[[EpochReport], None] = lambda report: None
    on_other_placement: Callable[[], None] = lambda: warnings.warn(OTHER_PLACEMENT, stacklevel=2)
    on_note: Callable[[str], None] = lambda note: warnings.warn(note, stacklevel=2)
