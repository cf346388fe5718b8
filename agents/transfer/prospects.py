"""What a choice leads to, by the rule, as numbers for a network."""

from __future__ import annotations

import numpy
from numpy.typing import NDArray

from drlpp.agents.transfer.relative_costs import (
    ideals_by_replicas,
    logarithm,
    replicas_needed,
    stage_ideals,
)
from drlpp.agents.transfer.transfer_encoder import Encoded
from drlpp.costs.stage_cost import Array

Indices = NDArray[numpy.int64]

TARGETS = numpy.array([0.85, 0.95, 1.0, 1.05, 1.15, 1.35, 1.75])
"""Seconds per minibatch to aim at, as multiples of the estimated optimum."""

_ESTIMATE = 2
_SOME = numpy.array([1, 2, 4])
_ONE_AND_TWO = numpy.array([1, 1, 2, 2])
_SLOW_AND_FAST = numpy.array([0, 1, 0, 1])
PARTITION_NUMBERS = 17 + 2 * len(TARGETS)
PAIR_NUMBERS = 16


def partition_features(
    encoded: Encoded, context: Indices, sums: Array, before: Array, cuts: Indices
) -> Array:
    """Return numbers on partitions in the making, R of them.

    For every target: how many accelerators the partition needs to keep within it, and how many are
    left then, beyond those that earlier partitions use and those that the work of the rest needs at
    least. Then what the partition takes on 1, 2, 4 and the best number of accelerators of mean
    speed, and on 1 and 2 of the slowest and of the fastest; its parts, and what is left to do and
    to cut.

    Args:
        encoded: the contexts.
        context: of every partition, ``(R,)``.
        sums: work, weights, incoming and outgoing of the partition, ``(R, 4)``.
        before: the work of earlier partitions, and the accelerators that they need for each target,
            ``(R, 1 + targets)``.
        cuts: how many partitions are finished, ``(R,)``.

    Returns:
        ``(R, PARTITION_NUMBERS)``.
    """
    batch, estimates = encoded.batch, encoded.estimates[context]
    accelerators, scales = batch.accelerators[context], batch.scales[context]
    speeds, finished_work, used = batch.speeds[context], before[:, 0], before[:, 1:]
    count = accelerators.astype(float)
    by_replicas = ideals_by_replicas(sums, scales, int(accelerators.max(initial=1)))
    targets = estimates[:, None] * TARGETS
    needed = replicas_needed(by_replicas, targets, accelerators)
    rest = numpy.maximum(count - finished_work - sums[:, 0], 0.0)
    spare = count[:, None] - used - needed - rest[:, None] / targets
    most = accelerators[:, None]
    beyond = numpy.arange(by_replicas.shape[1]) >= most
    best = numpy.where(beyond, numpy.inf, by_replicas).min(axis=1, initial=1e9)
    fitting = numpy.minimum(needed[:, _ESTIMATE], count).astype(int)[:, None]
    some = numpy.concatenate([numpy.minimum(_SOME, most), fitting], axis=1) - 1
    at_some = numpy.take_along_axis(by_replicas, some, axis=1)
    extremes = stage_ideals(
        sums[:, None], numpy.minimum(_ONE_AND_TWO, most), speeds[:, _SLOW_AND_FAST], scales[:, None]
    )
    ideals = numpy.concatenate([at_some[:, :-1], best[:, None], extremes, at_some[:, -1:]], axis=1)
    partitions_left = count - cuts - 1
    each = rest / numpy.maximum(partitions_left, 0.5)
    shares = numpy.stack([sums[:, 0], rest, each], axis=1) / estimates[:, None]
    bytes_ = numpy.stack([sums[:, 1], numpy.maximum(sums[:, 2], sums[:, 3])], axis=1)
    # Choices are made one by one when a walk is sampled, so it pays to fill one array in few steps.
    numbers = numpy.empty((len(sums), PARTITION_NUMBERS))
    width = len(TARGETS)
    numbers[:, :width] = needed / count[:, None]
    numbers[:, width : 2 * width] = _bounded(spare, -4, 4) / 2
    others = numbers[:, 2 * width :]
    others[:, :9] = _relative(ideals, estimates[:, None])
    others[:, 9:11] = logarithm(bytes_)
    others[:, [11, 12, 14]] = _bounded(shares, 0, 8) / 4
    others[:, 13] = rest / count
    others[:, 15] = partitions_left / count
    others[:, 16] = numpy.minimum(partitions_left, 3) / 3
    return numbers


def pair_features(
    encoded: Encoded,
    context: Indices,
    sums: Array,
    exists: NDArray[numpy.bool_],
    replicas: Array,
    slowest: Array,
    speeds: Array,
    left: Indices,
) -> Array:
    """Return numbers on giving the next accelerator to each of K partitions, for R choices.

    Args:
        encoded: the contexts.
        context: of every choice, ``(R,)``.
        sums: of the partitions, ``(R, K, 4)``.
        exists: whether there is such a partition, ``(R, K)``.
        replicas: accelerators that it has got, ``(R, K)``.
        slowest: the least of their relative speeds, infinite for none, ``(R, K)``.
        speeds: of the accelerator, ``(R,)``.
        left: accelerators that have not chosen yet, this one included, ``(R,)``.

    Returns:
        ``(R, K, PAIR_NUMBERS)``.
    """
    scales, aim = encoded.batch.scales[context, None], encoded.estimates[context, None]
    held = replicas > 0
    after_speed = numpy.minimum(slowest, speeds[:, None])
    before_speed = numpy.where(held, slowest, after_speed)
    before = stage_ideals(sums, numpy.maximum(replicas, 1), before_speed, scales)
    # What nobody holds takes for ever; here: four times what its first replica will take.
    before = numpy.where(held, before, 4 * before)
    after = stage_ideals(sums, replicas + 1, after_speed, scales)
    one_more = stage_ideals(sums, replicas + 2, after_speed, scales)
    before = numpy.where(exists, before, 0.0)
    highest = before.max(axis=1, keepdims=True)
    missing = numpy.where(exists, numpy.maximum(sums[..., 0] / aim - replicas, 0.0), 0.0)
    unheld = (exists & ~held).sum(axis=1, keepdims=True)
    columns = [
        _relative(before, aim),
        _relative(after, aim),
        _relative(one_more, aim),
        _relative(before, highest),
        _relative(after, highest),
        _relative(after, before),
        ~held,
        numpy.minimum(replicas, 8) / 4,
        numpy.clip(sums[..., 0] / aim, 0, 8) / 4,
        numpy.clip(missing, 0, 4) / 2,
        numpy.clip(missing.sum(axis=1, keepdims=True), 0, 8) / 4,
        logarithm(sums[..., 1]),
        logarithm(numpy.maximum(sums[..., 2], sums[..., 3])),
        numpy.log2(speeds)[:, None],
        numpy.where(held, numpy.log2(after_speed / before_speed), 0.0),
        (left[:, None] - unheld) / 4,
    ]
    return numpy.stack([numpy.broadcast_to(c, exists.shape) for c in columns], axis=-1)


def _relative(ideals: Array, others: Array) -> Array:
    """Return log2 of a ratio, bounded."""
    ratio = numpy.maximum(ideals, 1e-6) / numpy.maximum(others, 1e-6)
    return _bounded(numpy.log2(ratio), -4, 4) / 2


def _bounded(values: Array, least: float, most: float) -> Array:
    """Do what numpy.clip does, which takes several times as long for few values."""
    found: Array = numpy.minimum(numpy.maximum(values, least), most)
    return found
