"""The nearest method that empties the pipeline before every update, for formats without others."""

from __future__ import annotations

from drlpp.exporting.nearest import Nearest, with_method
from drlpp.schedule.kinds.flushed_1f1b import FLUSHED_1F1B
from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import SYNC


def flushing(nearest: Nearest, batch_size: int, *, always_1f1b: bool) -> Nearest:
    """Return the same with a schedule that flushes.

    In place of an asynchronous one, with as many microbatches as divide a minibatch, up to two for
    each stage.

    Args:
        nearest: a chain of single workers.
        batch_size: samples of a minibatch.
        always_1f1b: whether the format has no other order than flushed 1F1B.
    """
    method = nearest.candidate.method
    splits = method.schedule_kind.splits_backward
    if method.flushes and (method.schedule == FLUSHED_1F1B.name or not (always_1f1b or splits)):
        return nearest
    if method.flushes:
        chosen = method.model_copy(update={"schedule": FLUSHED_1F1B.name})
        why = "the order is 1F1B there"
        if splits and not always_1f1b:
            why = "halves of a backward lose gradients there, so whole ones are made, as in 1F1B"
        return with_method(nearest, chosen, f"schedule {method.schedule}: {why}")
    most = 2 * len(nearest.candidate.placement.stages)
    parts = max(count for count in range(1, most + 1) if batch_size % count == 0)
    chosen = Method(
        schedule=FLUSHED_1F1B.name,
        policy=SYNC.name,
        microbatches=parts,
        accumulate=method.accumulate,
        clip_norm=method.clip_norm,
    )
    return with_method(
        nearest,
        chosen,
        f"{method}: the pipeline is emptied before every update there, with microbatches: {parts}",
    )
