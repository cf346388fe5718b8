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
from drlpp.costs.stage_cost import Array, Group, StageSeconds, ring_seconds
from drlpp.costs.workload import Workload
from drlpp.placement.placement import Placement, Stage
from drlpp.schedule.actions import BUCKET_BYTES
from drlpp.specs.cluster import Cluster


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
    """Seconds per minibatch that no replicated stage of a placement can do with fewer.

    Args:
        workload: of which it says nothing where operators share weights.
        cluster: that replicas stand on.
    """

    def __init__(self, workload: Workload, cluster: Cluster) -> None:
        self._workload, self._cluster = workload, cluster
        self._known: dict[tuple[Stage, bool], float] = {}

    def __call__(self, placement: Placement) -> float:
        """Return a lower bound; 0 where no stage is replicated."""
        if self._workload.ties:
            return 0.0
        last = len(placement.stages) - 1
        return max(
            (
                self._of(stage, index == last)
                for index, stage in enumerate(placement.stages)
                if len(stage.accelerators) > 1
            ),
            default=0.0,
        )

    def _of(self, stage: Stage, last: bool) -> float:
        # A search, which may go on in another process, comes back to the same stages.
        found = self._known.get((stage, last))
        if found is None:
            found = self._known[stage, last] = self._seconds_of(stage, last)
        return found

    def _seconds_of(self, stage: Stage, last: bool) -> float:
        workload = self._workload
        group = Group.of(self._cluster, stage.accelerators, ())
        replicas, speed = len(stage.accelerators), float(group.speed)
        work = workload.stage(stage.operators, last=last)
        backward = workload.backward_seconds[list(stage.operators)].sum()
        backward /= workload.method.microbatches * speed
        end = 0.0
        for bucket in buckets_of(workload, stage.operators):
            takes = float(ring_seconds(numpy.array(bucket.bytes_), group))
            end = max(end, bucket.ready * backward) + takes
        left = max(0.0, end - float(work.one_backward_seconds) / speed)
        updates = float(work.updates_in_a_round(replicas))
        busy = float(StageSeconds.busy(work, replicas)) / speed
        return busy + updates * left / replicas
