"""What a training reports."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
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


def losses_text(reports: Sequence[EpochReport]) -> str:
    """Return what became of the loss, from the first epoch to the last: held-out where known."""
    first, last = reports[0], reports[-1]
    held_out = first.held_out_loss is not None and last.held_out_loss is not None
    what = "held-out loss" if held_out else "training loss"
    losses = {r.epoch: r.held_out_loss if held_out else r.loss for r in (first, last)}
    return f"{what} " + ", ".join(f"{loss:.4f} after epoch {e}" for e, loss in losses.items())


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

    ``on_staleness`` is called where updates come between forwards and backwards: with a line before
    training, of how many and what that costs, and with one after it, of what came of it
    (:attr:`PipelineTrainer.staleness`, :meth:`PipelineTrainer.outcome`).
    """

    on_begin: Callable[[], None] = lambda: None
    on_progress: Callable[[ProgressReport], None] = lambda report: None
    on_epoch: Callable[[EpochReport], None] = lambda report: None
    on_other_placement: Callable[[], None] = lambda: warnings.warn(OTHER_PLACEMENT, stacklevel=2)
    on_note: Callable[[str], None] = lambda note: warnings.warn(note, stacklevel=2)
    on_staleness: Callable[[str], None] = lambda line: None
