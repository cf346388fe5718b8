"""What a choice leads to, by the rule, as numbers for a network."""

from __future__ import annotations

import numpy
from numpy.typing import NDArray

from drlpp.agents.relative_costs import (
    ideals_by_replicas,
    logarithm,
    replicas_needed,
    stage_ideals,
)
from drlpp.workload import Array

TARGETS = numpy.array([0.85, 0.95, 1.0, 1.05, 1.15, 1.35, 1.75])
"""Seconds per minibatch to aim at, as multiples of the estimated optimum."""

_ESTIMATE = 2
PARTITION_NUMBERS = 17 + 2 * len(TARGETS)
PAIR_NUMBERS = 16


def partition_prospects(
    sums: Array,
    finished_work: Array,
    used: Array,
    cuts: NDArray[numpy.int64],
    accelerators: NDArray[numpy.int64],
    speeds: Array,
    scales: Array,
    estimates: Array,
) -> tuple[Array, Array]:
    """Numbers on partitions in the making, R of them.

    For every target: how many accelerators the partition needs to keep within it, and how many are
    left then, beyond those that earlier partitions use and those that the work of the rest needs at
    least. Then what the partition takes on 1, 2, 4 and the best number of accelerators of mean
    speed, and on 1 and 2 of the slowest and of the fastest; its parts, and what is left to do and
    to cut.

    Args:
        sums: work, weights, incoming and outgoing of the partition, ``(R, 4)``.
        finished_work: of earlier partitions, ``(R,)``.
        used: accelerators that earlier partitions need for each target, ``(R, targets)``.
        cuts: how many partitions are finished, ``(R,)``.
        accelerators: A, ``(R,)``.
        speeds: the least and the largest relative speed, ``(R, 2)``.
        scales: ``(R, 3)``.
        estimates: of the optimum, in ideals, ``(R,)``.

    Returns:
        The numbers, ``(R, PARTITION_NUMBERS)``, and the accelerators that the partition needs for
        each target, ``(R, targets)``.
    """
    count, rows = accelerators.astype(float), numpy.arange(len(sums))
    by_replicas = ideals_by_replicas(sums, scales, int(accelerators.max(initial=1)))
    targets = estimates[:, None] * TARGETS
    needed = replicas_needed(by_replicas, targets, accelerators)
    rest = numpy.maximum(count - finished_work - sums[:, 0], 0.0)
    spare = count[:, None] - used - needed - rest[:, None] / targets
    beyond = numpy.arange(by_replicas.shape[1]) >= accelerators[:, None]
    best = numpy.where(beyond, numpy.inf, by_replicas).min(axis=1, initial=1e9)
    some = [by_replicas[rows, numpy.minimum(m, accelerators) - 1] for m in (1, 2, 4)]
    pair = numpy.minimum(2, accelerators)
    extremes = [
        stage_ideals(sums, replicas, speeds[:, kind], scales)
        for replicas in (numpy.ones(len(sums)), pair.astype(float))
        for kind in (0, 1)
    ]
    fitting = numpy.minimum(needed[:, _ESTIMATE], count).astype(int) - 1
    partitions_left = count - cuts - 1
    numbers = numpy.column_stack(
        [
            needed / count[:, None],
            numpy.clip(spare, -4, 4) / 2,
            *(_relative(ideals, estimates) for ideals in (*some, best, *extremes)),
            _relative(by_replicas[rows, fitting], estimates),
            logarithm(sums[:, 1]),
            logarithm(numpy.maximum(sums[:, 2], sums[:, 3])),
            numpy.clip(sums[:, 0] / estimates, 0, 8) / 4,
            numpy.clip(rest / estimates, 0, 8) / 4,
            rest / count,
            numpy.clip(rest / numpy.maximum(partitions_left, 0.5) / estimates, 0, 8) / 4,
            partitions_left / count,
            numpy.minimum(partitions_left, 3) / 3,
        ]
    )
    return numbers, needed


def pair_prospects(
    sums: Array,
    exists: NDArray[numpy.bool_],
    replicas: Array,
    slowest: Array,
    speeds: Array,
    left: Array,
    scales: Array,
    estimates: Array,
) -> Array:
    """Numbers on giving the next accelerator to each of the K partitions, for R choices.

    Args:
        sums: of the partitions, ``(R, K, 4)``.
        exists: whether there is such a partition, ``(R, K)``.
        replicas: accelerators that it has got, ``(R, K)``.
        slowest: the least of their relative speeds, infinite for none, ``(R, K)``.
        speeds: of the accelerator, ``(R,)``.
        left: accelerators that have not chosen yet, this one included, ``(R,)``.
        scales: ``(R, 3)``.
        estimates: of the optimum, in ideals, ``(R,)``.

    Returns:
        ``(R, K, PAIR_NUMBERS)``.
    """
    scales, aim = scales[:, None], estimates[:, None]
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
    """log2 of a ratio, bounded."""
    ratio = numpy.maximum(ideals, 1e-6) / numpy.maximum(others, 1e-6)
    found: Array = numpy.clip(numpy.log2(ratio), -4, 4) / 2
    return found
