"""Buckets of gradients that replicas sum at once, and what these sums leave to wait for.

By the rule an all-reduce hides behind the whole backward before it
(:mod:`drlpp.costs.stage_cost`). In fact its first bucket is only ready when a part of that is done,
and each waits for the one before; what comes last has nothing left to hide behind. So where
replicas hold many weights the rule is too low, and a search that goes by it ends where many wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy

from drlpp.capturing.graph import listed_module
from drlpp.costs.placed_stages import PlacedStages
from drlpp.costs.stage_cost import Array, Group, StageSeconds, ring_seconds
from drlpp.costs.workload import Workload
from drlpp.schedule.actions import BUCKET_BYTES


class Bucket(NamedTuple):
    """Gradients that replicas sum at once: their bytes, and when they are there.

    ``ready`` is the part of the operators' backward passes after which that is; the last operators
    come first.
    """

    bytes_: float
    ready: float


def buckets_of(workload: Workload, operators: tuple[int, ...]) -> list[Bucket]:
    """Return the buckets of a replicated stage, in the order in which they are summed.

    They are filled as the runtime fills them, with two differences. The runtime fills them weight
    by weight; here all weights of an operator go into one bucket, and a weight that several of them
    read goes with the last that the backward comes to. What other stages hold copies of is summed
    by itself.
    """
    own = _own_bytes(workload, operators)
    whole = float(workload.backward_seconds[list(operators)].sum()) or 1.0
    found: list[Bucket] = []
    bytes_ = passed = ready = 0.0
    for operator in sorted(operators, reverse=True):
        passed += float(workload.backward_seconds[operator])
        added = float(own[operator])
        if not added:
            continue
        if bytes_ and bytes_ + added > BUCKET_BYTES:
            found.append(Bucket(bytes_, ready))
            bytes_ = 0.0
        bytes_ += added
        ready = passed / whole
    return [*found, Bucket(bytes_, ready)] if bytes_ else found


def wrapped_blocks(workload: Workload) -> list[Bucket]:
    """Return what users wrap for shards, the last first, and behind it the rest of the model.

    They are the outermost modules of lists, as the names of operators tell. A model without any has
    buckets instead.
    """
    own, whole = _own_bytes(workload, range(len(workload))), workload.backward_seconds.sum() or 1.0
    found: dict[str | None, list[int]] = {}
    for operator in reversed(range(len(workload))):
        found.setdefault(listed_module(workload.names[operator]), []).append(operator)
    rest = found.pop(None, [])
    blocks = [
        Bucket(float(own[block].sum()), float(workload.backward_seconds[block[-1] :].sum() / whole))
        for block in found.values()
        if own[block].any()
    ]
    if blocks:
        return [*blocks, Bucket(float(own[rest].sum()), 1.0)]
    return buckets_of(workload, tuple(range(len(workload)))) or [Bucket(0.0, 1.0)]


def _own_bytes(workload: Workload, operators: Sequence[int]) -> Array:
    """Return the bytes of weights that each operator brings to a stage of some."""
    own, here = workload.parameter_bytes.copy(), set(operators)
    for tie in workload.ties:
        readers = [operator for operator in tie.operators if operator in here]
        apart = tie.trained and len(readers) < len(tie.operators)
        own[readers if apart else readers[1:]] -= tie.bytes_
    return own


class SumsLeft:
    """Seconds per minibatch that no replicated stage of a placement can do with fewer."""

    def __init__(self) -> None:
        # A search comes back to the same stages.
        self._known: dict[tuple[int, ...], list[Bucket]] = {}

    def __call__(self, placed: PlacedStages, groups: Group) -> float:
        """Return a lower bound; 0 where no stage is replicated, or operators share weights.

        Args:
            placed: the stages, each time of the same workload.
            groups: the accelerators of each.
        """
        workload, replicas = placed.workload, placed.replicas
        replicated = numpy.flatnonzero(replicas > 1)
        if workload.ties or not len(replicated):
            return 0.0
        work, parts = placed.work, workload.method.microbatches
        backward = placed.total(workload.backward_seconds) / (parts * groups.speed)
        end = numpy.zeros(len(replicas))
        for stage in replicated.tolist():
            buckets = self._buckets_of(workload, placed.placement.stages[stage].operators)
            bytes_ = numpy.array([bucket.bytes_ for bucket in buckets])
            takes = ring_seconds(bytes_, groups.one(stage))
            for bucket, seconds in zip(buckets, takes.tolist(), strict=True):
                end[stage] = max(end[stage], bucket.ready * backward[stage]) + seconds
        left = numpy.maximum(0.0, end - work.one_backward_seconds / groups.speed)
        busy = StageSeconds.busy(work, replicas) / groups.speed
        least = busy + work.updates_in_a_round(replicas) * left / replicas
        return float(least[replicated].max())

    def _buckets_of(self, workload: Workload, operators: tuple[int, ...]) -> list[Bucket]:
        if operators not in self._known:
            self._known[operators] = buckets_of(workload, operators)
        return self._known[operators]
