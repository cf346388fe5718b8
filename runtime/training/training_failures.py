"""What is said of a training that fails: why, what is kept, and how it continues."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from drlpp.errors import DRLPPError, NotFinite, RunFailure
from drlpp.runtime.training.checkpoints.checkpoint_store import CheckpointStore


def with_way_on(
    failure: RunFailure, checkpoint: CheckpointStore, epochs: int, position: int
) -> RunFailure:
    """Return the same failure, with how to resume from a checkpoint, if there is one."""
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


def diverged(error: NotFinite, epoch: int, checkpoint: CheckpointStore) -> NotFinite:
    """Return the same error, with what may help and what is kept."""
    text = (
        f"training diverged in epoch {epoch}: {error}; if all values of the data are finite, a "
        "lower learning rate, a warm_up, clip_norm, synchronous epochs or float32 may help"
    )
    if checkpoint.exists():
        text += (
            f"; {checkpoint} has finite weights; a resumed run starts from them, with another "
            "clip_norm or precision if you like, but with the same rates and epochs"
        )
    return NotFinite(text, error.minibatch)


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
