"""What is said of a training that fails: what is to blame, what is kept, and the way on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from drlpp.errors import DataError, DRLPPError, NotFinite, RunFailure
from drlpp.runtime.loading.finite_data import NotFiniteValues
from drlpp.runtime.training.checkpoints.checkpoint_store import CheckpointStore
from drlpp.runtime.training.training_reports import EpochReport
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline


def with_way_on(
    failure: RunFailure, checkpoint: CheckpointStore, epochs: int, position: int
) -> RunFailure:
    """Return the same failure, with how to resume in its message.

    Args:
        failure: of the workers or the data.
        checkpoint: the last, which need not be there.
        epochs: that it has, if it is there.
        position: minibatches of the next epoch that it has.
    """
    if not checkpoint.exists():
        kept = (
            "nothing had been saved yet, so the same command begins anew (--checkpoint-every, "
            "checkpoint_every save within an epoch)"
        )
    else:
        parts = [f"epoch {epochs}"] if epochs else []
        parts += [f"{position} minibatches of epoch {epochs + 1}"] if position else []
        kept = (
            f"{checkpoint} has all up to {' and '.join(parts)}, and the same command with "
            "--resume (in Python resume=True) continues there"
        )
    return type(failure)(f"{failure}; {kept}")


def with_finite_weights(failure: NotFinite, checkpoint: CheckpointStore) -> NotFinite:
    """Return the same, with what is kept of a training that has diverged, if anything is."""
    if not checkpoint.exists():
        return failure
    return NotFinite(
        f"{failure}; {checkpoint} has finite weights; a resumed run starts from them, with "
        "another clip_norm or precision if you like, but with the same rates and epochs"
    )


@contextmanager
def telling_what_is_kept(epoch: int) -> Iterator[None]:
    """Say of whatever fails in the block that it was the evaluation of an epoch that is saved."""
    try:
        yield
    except DRLPPError as error:
        raise type(error)(
            f"evaluating epoch {epoch}, which is saved, and is evaluated again when this run "
            f"is resumed: {error}"
        ) from error


def note_of_skipped_updates(epoch: int, skipped: int, loss_scale: float) -> str:
    """Return what is said of updates that a stage skipped in an epoch."""
    return (
        f"in epoch {epoch} gradients overflowed in float16, and a stage skipped "
        f"{skipped} of its updates; a loss_scale below {loss_scale:g} may help"
    )


def notes_of_evaluation(
    report: EpochReport, bad: Callable[[], list[NotFiniteValues]]
) -> Iterator[str]:
    """Yield what a user should know of an epoch whose held-out loss or score is not finite.

    Args:
        report: of the epoch.
        bad: the first held-out minibatch with such values of inputs and targets; not asked for
            where it does not matter.
    """
    if all(value is None or math.isfinite(value) for value in (report.held_out_loss, report.score)):
        return
    for one in bad():
        yield (
            f"the held-out data is not finite in minibatch {one.minibatch + 1}, where {one.text}; "
            f"so the held-out loss or score of epoch {report.epoch} is not finite either"
        )


def reach_of(pipeline: Pipeline, method: Method) -> int:
    """Return after how many more minibatches, at most, a gradient has changed a loss."""
    return method.minibatches_in_flight(pipeline) + method.minibatches_together(pipeline)


def why_not_finite(
    error: NotFinite, bad: list[NotFiniteValues], last: int, reach: int, minibatches: int
) -> RunFailure:
    """Decide whether the data is to blame, or training has diverged.

    Values that are not finite may be masked by the model: those that training went on after, for
    longer than they could have gone unnoticed, are not to blame.

    Args:
        error: of the loss or the weights.
        bad: the first minibatch with such values of inputs and targets, none after ``last``.
        last: the minibatch of that loss, or before the weights were looked at.
        reach: for how many minibatches before, at most, bad values may have gone unnoticed.
        minibatches: of an epoch.

    Returns:
        A :class:`DataError`, or the :class:`NotFinite` with what may help.
    """
    earliest = sorted(bad, key=lambda one: one.minibatch)
    harmful = [one for one in earliest if one.minibatch > last - reach]
    if harmful:
        return DataError(
            f"the data to train on is not finite in {_place(harmful[0], minibatches)}, and {error}"
            "; mend or leave out such samples, or mask them in the model"
        )
    harmless = (
        f"; the data is not finite either, but did no harm before: in "
        f"{_place(earliest[0], minibatches)}"
        if earliest
        else ""
    )
    return NotFinite(
        f"training diverged in epoch {last // minibatches + 1}: {error}; a lower learning rate, a "
        f"warm_up, clip_norm, synchronous epochs or float32 may help{harmless}",
        error.minibatch,
    )


def _place(bad: NotFiniteValues, minibatches: int) -> str:
    epoch, minibatch = divmod(bad.minibatch, minibatches)
    return f"minibatch {minibatch + 1} of epoch {epoch + 1}, where {bad.text}"
