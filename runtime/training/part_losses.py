"""The losses of minibatches and of their parts, by number in their epoch."""

from __future__ import annotations

from collections.abc import Mapping

from drlpp.runtime.ipc.answers import RunResult
from drlpp.schedule.actions import MicrobatchId


def losses_of(results: Mapping[int, RunResult], began: int) -> dict[MicrobatchId, float]:
    """Return the loss of every part, numbered from the beginning of the epoch."""
    losses: dict[MicrobatchId, float] = {}
    for result in results.values():
        losses |= numbered(result.losses, began)
    return losses


def numbered(losses: Mapping[MicrobatchId, float], began: int) -> dict[MicrobatchId, float]:
    """Return the losses of a run that began with minibatch number ``began`` of its epoch."""
    return {
        (minibatch + began, microbatch): loss for (minibatch, microbatch), loss in losses.items()
    }


def mean_losses(losses: Mapping[MicrobatchId, float]) -> dict[int, float]:
    """Return every minibatch's mean over its parts; their number may change on resuming."""
    parts: dict[int, list[float]] = {}
    for (minibatch, _), loss in losses.items():
        parts.setdefault(minibatch, []).append(loss)
    return {minibatch: sum(of_one) / len(of_one) for minibatch, of_one in sorted(parts.items())}
