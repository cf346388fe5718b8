"""What plain PyTorch and torch's kinds of data parallelism would take, by formula.

A minibatch is divided evenly among m accelerators, each of which goes through the blocks of the
model, in one pass or in several that accumulate gradients; one update follows. Links gather the
weights of a block before its computation, and sum its gradients behind it::

    links      g1  g2  g3 │ g3  g2 r3  g1 r2  r1 │ (ZeRO-1: g)
    computes      f1 f2 f3     b3    b2    b1    │ update

Here m is on m accelerators of a ring, the slowest of which counts, W the bytes of weights and B the
bandwidth of the slowest link: a gather, or a reduce-scatter, takes (m − 1)·(W / (m B) + latency),
an all-reduce twice that. Blocks are those that users wrap, where nothing is gathered the buckets in
which replicas sum gradients (:mod:`drlpp.costs.buckets`). On CPUs torch's Gloo makes a
reduce-scatter of an all-reduce, so that it takes as long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy

from drlpp.costs.buckets import buckets_of, wrapped_blocks
from drlpp.costs.memory import MemoryModel
from drlpp.costs.stage_cost import Group, ring_seconds
from drlpp.costs.workload import Workload
from drlpp.schedule.kinds.alternating import FLUSHED_1F1B
from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import SYNC
from drlpp.specs.cluster import Cluster

LOCAL_STEPS = (8, 16, 32, 64)
"""Minibatches after which local SGD and DiLoCo may average the weights."""

_SAMPLES = (8, 0.26), (64, 0.37)
"""What averages of four accelerators after so many minibatches cost in samples to a loss beyond
plain PyTorch's, local SGD's or DiLoCo's, whichever are better, with decoders of 2.7 and 10.7
million weights. With eight a smaller decoder needed twice as many beyond (docs/results.md)."""

_POWERSGD_LOSES = 0.14
"""Of rank 4, with the same."""

_BLOCKS_GATHERED = 3
"""Whole blocks that FSDP holds: the one that is computed, and the next as it comes and as it is
used. What is in no block stays during a pass, with its gradients."""


@dataclass(frozen=True)
class WayOfTraining:
    """A way of training a model without a pipeline.

    Attributes:
        torch: what torch calls it.
        gathers: how often a pass gathers the weights: before forwards, and again before backwards.
        sums: halves of an all-reduce that a block's gradients take: 1 is a reduce-scatter.
        compression: bytes of a gradient that are sent, of one that is not compressed; of PowerSGD
            about what matrices of a few hundred rows have.
        afterwards: likewise halves of an all-reduce of all weights behind an update.
        local: whether these follow one of many updates only: gradients are not summed.
        updates: that take as long as what it computes besides; of PowerSGD on a processor.
        copies: of the weights that it keeps besides.
        loses: samples that it takes to a loss beyond plain PyTorch's, for each of these; of local
            ways as averages are rare.
        shards_state: whether each accelerator has a part of the optimizer's state, and makes a part
            of an update; those that gather have one of weights and gradients, too.
    """

    torch: str
    gathers: int = 0
    sums: int = 0
    compression: float = 1.0
    afterwards: float = 0.0
    local: bool = False
    updates: float = 0.0
    copies: int = 0
    loses: float = 0.0
    shards_state: bool = False

    @property
    def approximates(self) -> bool:
        """Whether its updates are not those of plain PyTorch: only a loss tells how good it is."""
        return self.local or self.loses > 0


PLAIN = "plain"
WAYS = {
    PLAIN: WayOfTraining("plain PyTorch"),
    "ddp": WayOfTraining("DistributedDataParallel", sums=2),
    "ddp-bf16": WayOfTraining(
        "DistributedDataParallel with bf16_compress_hook", sums=2, compression=0.5
    ),
    # What compression has lost so far, and a gradient before it was compressed.
    "powersgd": WayOfTraining(
        "DistributedDataParallel with powerSGD_hook",
        sums=2,
        compression=1 / 32,
        updates=8,
        copies=2,
        loses=_POWERSGD_LOSES,
    ),
    "zero-1": WayOfTraining("ZeroRedundancyOptimizer", sums=2, afterwards=1, shards_state=True),
    "zero-2": WayOfTraining(
        "fully_shard with reshard_after_forward=False",
        gathers=1,
        sums=1,
        shards_state=True,
    ),
    "fsdp": WayOfTraining("fully_shard", gathers=2, sums=1, shards_state=True),
    # What is averaged; DiLoCo's weights of the last average, and their momentum.
    "local-sgd": WayOfTraining("PostLocalSGDOptimizer", afterwards=2, local=True, copies=1),
    "diloco": WayOfTraining("torchft's DiLoCo", afterwards=2, local=True, copies=3),
}
"""By name, in the order of tables."""


@dataclass(frozen=True)
class PredictedWay:
    """What a way of training is predicted to take on some accelerators.

    Attributes:
        name: in :data:`WAYS`.
        accelerators: that a minibatch is divided among.
        passes: of each of them for a minibatch; with more than one, gradients accumulate.
        every: minibatches after which weights are averaged, if only then.
        seconds_per_minibatch: the update included.
        waiting_share: the part of them in which links are waited for.
        memory_bytes: of each accelerator.
        fits: whether each of them has so much.
    """

    name: str
    accelerators: tuple[int, ...]
    passes: int
    every: int
    seconds_per_minibatch: float
    waiting_share: float
    memory_bytes: float
    fits: bool

    @property
    def samples(self) -> float:
        """How many times plain PyTorch's samples it takes to the same loss, roughly."""
        if self.way.local:
            return _samples(self.every, len(self.accelerators))
        return 1 + self.way.loses

    @property
    def seconds_to_loss(self) -> float:
        """Its seconds for as much progress as a minibatch of plain PyTorch makes."""
        return self.seconds_per_minibatch * self.samples

    @property
    def way(self) -> WayOfTraining:
        """What it is."""
        return WAYS[self.name]


class WaysOfTraining:
    """Predictions for a model on a cluster.

    Args:
        workload: the model and its costs.
        cluster: accelerators and links.
        memory: says how large the optimizer's state is.
        batch_size: samples of a minibatch, which is divided into equal parts.
    """

    def __init__(
        self, workload: Workload, cluster: Cluster, memory: MemoryModel, batch_size: int
    ) -> None:
        flushed = Method(schedule=FLUSHED_1F1B.name, policy=SYNC.name)
        self._workload = workload.with_method(flushed)
        self._cluster, self._batch_size = cluster, batch_size
        self._state_copies = memory.state_copies
        # The fastest first, those of a host together.
        self._order = sorted(range(cluster.accelerators), key=lambda a: -cluster.speeds[a])
        operators = tuple(range(len(workload)))
        self._work = self._workload.stage(operators, last=True)
        # The last of the model first.
        self._buckets = buckets_of(self._workload, operators)
        self._wrapped = wrapped_blocks(self._workload)

    def best(self) -> list[PredictedWay]:
        """Return each way that is possible, on the accelerators on which it is fastest and fits.

        It has as few passes as fit into memory.
        """
        found = []
        for name in WAYS:
            tried = [self._within_memory(name, chosen) for chosen in self._groups(name)]
            if tried:
                found.append(min(tried, key=lambda p: (not p.fits, p.seconds_per_minibatch)))
        return found

    @cached_property
    def weights_ratio(self) -> float:
        """R_w: the seconds of all weights over the slowest link, for each of a minibatch on one."""
        group = Group.of(self._cluster, self._order, ())
        sending = float(self._work.parameter_bytes / group.ring_bandwidth)
        return sending / (self.plain.seconds_per_minibatch or math.inf)

    @cached_property
    def memory_ratio(self) -> float:
        """R_m: the memory of training in one pass on one accelerator, of the largest there is.

        0 where memory is not limited.
        """
        largest = max(limit or math.inf for limit in self._cluster.memory_bytes)
        return self.plain.memory_bytes / largest

    @property
    def plain(self) -> PredictedWay:
        """Plain PyTorch on the fastest accelerator, in one pass."""
        return self.of(PLAIN, self._order[:1])

    def of_all(self) -> PredictedWay | None:
        """Return DDP on all accelerators; none if the minibatch cannot be divided among them."""
        if len(self._order) == 1 or self._batch_size % len(self._order):
            return None
        return self.of("ddp", self._order)

    def of(self, name: str, accelerators: Sequence[int], passes: int = 1) -> PredictedWay:
        """Predict a way of training on some accelerators."""
        way, m, work, workload = WAYS[name], len(accelerators), self._work, self._workload
        group = Group.of(self._cluster, accelerators, ())
        factor = (workload.replicated.seconds if m > 1 else 1.0) / float(group.speed)
        parts = m * passes
        of_part = factor * (1 + workload.fixed_share * (parts - 1)) / parts
        forward = float(workload.forward_seconds.sum()) * of_part
        backward = float(workload.backward_seconds.sum()) * of_part
        collects = passes > 1 or (m > 1 and way.sums > 0)
        collecting = float(work.sharing_seconds) * collects
        before = factor * workload.forward_overhead_seconds
        behind = factor * (workload.backward_overhead_seconds + collecting)
        least = factor * workload.update_overhead_seconds
        update = float(work.update_seconds) * factor
        behind += way.updates * update
        if way.shards_state:
            update = least + (update - least) / m

        def halves(bytes_: float) -> float:
            """Return the seconds of a gather, half of an all-reduce."""
            return float(ring_seconds(numpy.array(bytes_), group)) / 2

        on_cpus = "cpu" in self._cluster.devices
        sums = 2 if way.sums and on_cpus else way.sums
        blocks = [
            (halves(bytes_), sums * halves(bytes_ * way.compression), ready)
            for bytes_, ready in (self._wrapped if way.gathers else self._buckets)
        ]
        computing = before + forward + backward + behind
        summed = before + _pass_seconds(blocks, forward, backward, behind, way.gathers)
        # Without shards, all passes but the last leave their gradients where they are.
        others = summed if way.gathers else computing
        seconds = summed + (passes - 1) * others + update
        computing = passes * computing + update
        behind_updates = way.afterwards * halves(float(work.parameter_bytes))
        every = 1
        if way.local:
            every = min(LOCAL_STEPS, key=lambda n: (seconds + behind_updates / n) * _samples(n, m))
        seconds += behind_updates / every
        needed = self._memory_bytes(way, m, parts)
        limits = [self._cluster.memory_bytes[a] or math.inf for a in accelerators]
        return PredictedWay(
            name=name,
            accelerators=tuple(sorted(accelerators)),
            passes=passes,
            every=every,
            seconds_per_minibatch=seconds,
            waiting_share=1 - computing / seconds if seconds else 0.0,
            memory_bytes=needed,
            fits=needed <= min(limits),
        )

    def _groups(self, name: str) -> list[list[int]]:
        """Return the accelerators that a way may take: each alone, or the fastest 2, 3, …"""
        if name == PLAIN:
            return [[accelerator] for accelerator in self._order]
        numbers = range(2, min(len(self._order), self._batch_size) + 1)
        return [self._order[:m] for m in numbers if self._batch_size % m == 0]

    def _within_memory(self, name: str, accelerators: list[int]) -> PredictedWay:
        """Return a way in the fewest passes that fit; in the most if none do."""
        share = self._batch_size // len(accelerators)
        for passes in (n for n in range(1, share + 1) if share % n == 0):
            found = self.of(name, accelerators, passes)
            if found.fits:
                break
        return found

    def _memory_bytes(self, way: WayOfTraining, accelerators: int, parts: int) -> float:
        work, m = self._work, accelerators
        weights, kept = float(work.parameter_bytes), float(work.kept_bytes) / parts
        working = float(work.working_bytes) / parts
        state = self._state_copies * weights / (m if way.shards_state else 1)
        if not way.gathers:
            return weights * (2 + way.copies) + state + kept + working
        *blocks, rest = (bytes_ for bytes_, _ in self._wrapped)
        block, own = max(blocks, default=0.0), weights / m
        # Gradients of one pass come as its activations go.
        held = own + state + (max(kept, own) if parts == m else kept + own)
        if way.gathers == 1:
            return held + weights + max(block, rest, working)
        return held + max(_BLOCKS_GATHERED * block + 2 * rest, rest + working)


def _samples(every: int, accelerators: int) -> float:
    """Return what averages after so many minibatches cost, on a straight line of the logarithm.

    What that is beyond 1 grows with the accelerators.
    """
    (least, of_least), (most, of_most) = _SAMPLES
    of_four = of_least + (of_most - of_least) * math.log(every / least) / math.log(most / least)
    return 1 + of_four * accelerators / 4


def _pass_seconds(
    blocks: Sequence[tuple[float, float, float]],
    forward: float,
    backward: float,
    behind: float,
    gathers: int,
) -> float:
    """Return the seconds of a forward and a backward, until the last gradients are summed.

    Args:
        blocks: of each the seconds of a gather, those of its sum, and the part of the backward
            after which its gradients are there; the last of the model first.
        forward, backward, behind: what computing takes, and what comes after the backward.
        gathers: 1 before the forward alone, 2 before the backward, too.
    """
    ready = [moment for _, _, moment in blocks]
    shares = [after - before for before, after in pairwise([0.0, *ready])]
    # What comes before all weights, as do inputs.
    rest = 1 - sum(shares)
    # When links are free, when the computation is, and when it began the newest block.
    links, computed, begun = 0.0, rest * forward, 0.0
    for (gather, _, _), share in zip(reversed(blocks), reversed(shares), strict=True):
        if gathers:
            links = max(links, begun) + gather
        begun = max(links, computed)
        computed = begun + share * forward
    summing = 0.0
    for (gather, of_block, _), share in zip(blocks, shares, strict=True):
        if gathers > 1:
            links = max(links, begun) + gather
        begun = max(computed, links) if gathers > 1 else computed
        # Gradients of the block before come behind the weights of the next.
        links = max(links, computed) + summing
        computed, summing = begun + share * backward, of_block
    links = max(links, computed) + summing
    return max(links, computed + rest * backward + behind)
