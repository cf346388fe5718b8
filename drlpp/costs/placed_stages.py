"""The stages of a placement as arrays: what they do, send each other, and hold.

Copies of a weight make their updates together (:mod:`drlpp.schedule.ties`), of as many minibatches
as make whole updates of each stage that holds one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy

from drlpp.capturing.graph import SharedParameter, copies_of
from drlpp.costs.memory import MemoryModel
from drlpp.costs.stage_cost import Array, Indices, StageWork, sums_of
from drlpp.costs.tensors import Flags, TransferArrays
from drlpp.costs.workload import Workload
from drlpp.placement.placement import Placement
from drlpp.schedule.pipeline import Pipeline

Holders = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Exchange:
    """What stages send each other for a minibatch.

    Attributes:
        incoming_bytes, outgoing_bytes: of every stage, where a tensor counts once for the stage
            that makes it; ``(stages,)``.
        bytes_: from which stage to which, where a tensor counts for each that reads it;
            ``(stages, stages)``.
        makes: which stage makes a tensor, be it empty, that which other reads.
    """

    incoming_bytes: Array
    outgoing_bytes: Array
    bytes_: Array
    makes: Flags

    @classmethod
    def of(cls, tensors: TransferArrays, stage_of: Indices, stages: int) -> Exchange:
        """Look at all tensors.

        Args:
            tensors: of a workload.
            stage_of: the stage of every operator, and then of the loss.
            stages: how many there are.
        """
        present = numpy.zeros((len(tensors.maker), stages), dtype=bool)
        present[tensors.tensor, stage_of[tensors.member]] = True
        sources = stage_of[tensors.maker]
        present[numpy.arange(len(sources)), sources] = False
        # Of all stages that a tensor touches, its source sends it and the others receive it.
        crossing, targets = present.nonzero()
        senders = sources[crossing]
        there, back = senders * stages + targets, targets * stages + senders
        forward, backward = tensors.forward_bytes[crossing], tensors.backward_bytes[crossing]
        between = sums_of(there, forward, stages * stages)
        between += sums_of(back, backward, stages * stages)
        makes = numpy.zeros(stages * stages, dtype=bool)
        makes[there] = True
        once = present.any(axis=1)
        sent, returned = (
            sums_of(sources[once], bytes_[once], stages)
            for bytes_ in (tensors.forward_bytes, tensors.backward_bytes)
        )
        return cls(
            incoming_bytes=sums_of(targets, forward, stages) + returned,
            outgoing_bytes=sums_of(targets, backward, stages) + sent,
            bytes_=between.reshape(stages, stages),
            makes=makes.reshape(stages, stages),
        )

    @property
    def talks(self) -> Flags:
        """Which stages exchange tensors at all; ``(stages, stages)``."""
        return self.makes | self.makes.T


@dataclass(frozen=True, eq=False)
class PlacedStages:
    """The stages of a valid placement of a workload; arrays have a value for each."""

    workload: Workload
    placement: Placement

    @cached_property
    def holders(self) -> Holders:
        """The accelerators of every stage."""
        return self.placement.holders

    @cached_property
    def replicas(self) -> Indices:
        """How many accelerators every stage has."""
        return numpy.array([len(held) for held in self.holders])

    @cached_property
    def stage_of(self) -> Indices:
        """The stage of every operator, and then of the loss, which is computed with the last."""
        stage_of = numpy.empty(len(self.workload) + 1, dtype=int)
        for index, stage in enumerate(self.placement.stages):
            stage_of[list(stage.operators)] = index
        stage_of[-1] = len(self.holders) - 1
        return stage_of

    @cached_property
    def exchange(self) -> Exchange:
        """What they send each other."""
        return Exchange.of(self.workload.transfer_arrays, self.stage_of, len(self.holders))

    def total(self, values: Array) -> Array:
        """Return the sum of a value of every operator over each stage."""
        return sums_of(self.stage_of[:-1], values, len(self.holders))

    @cached_property
    def ties(self) -> dict[tuple[int, ...], tuple[SharedParameter, ...]]:
        """The weights that stages hold copies of, in the order of ``Pipeline.ties``."""
        return copies_of(self.workload.ties, self.stage_of[:-1].tolist())

    @cached_property
    def work(self) -> StageWork:
        """What they do for a minibatch."""
        stages = len(self.holders)
        work = self.workload.work_of(
            self.total,
            incoming_bytes=self.exchange.incoming_bytes,
            outgoing_bytes=self.exchange.outgoing_bytes,
            last=numpy.arange(stages) == stages - 1,
        )
        if not self.ties:
            return work
        all_bytes, rates = numpy.zeros((2, stages))
        own = work.method.minibatches_of_update(self.replicas)
        for sharing, members in self.ties.items():
            bytes_ = sum(tie.bytes_ for tie in members)
            for stage in sharing:
                all_bytes[stage] += bytes_
                rates[stage] += bytes_ * own[stage] / self._together(sharing)
        updates = numpy.divide(rates, all_bytes, out=numpy.ones(stages), where=all_bytes > 0)
        return replace(work, tied_updates=updates)

    @cached_property
    def tied_bytes(self) -> list[tuple[tuple[int, ...], float]]:
        """Stages that share weights, and the bytes of a message between two for a minibatch."""
        return [
            (sharing, sum(tie.bytes_ for tie in members) / self._together(sharing))
            for sharing, members in self.ties.items()
        ]

    def _together(self, sharing: tuple[int, ...]) -> int:
        """Return of how many minibatches an update of copies on these stages is."""
        of_update = self.workload.method.minibatches_of_update
        return math.lcm(*(of_update(len(self.holders[stage])) for stage in sharing))

    @cached_property
    def pipeline(self) -> Pipeline:
        """The shape: accelerators, and which stages exchange tensors."""
        makes, sent = self.exchange.makes, self.exchange.bytes_ > 0
        # Tensors of other projects' problems may also lead back.
        crossing = [
            (one, other, bool(sent[other, one] or makes[other, one]))
            for one, other in numpy.argwhere(numpy.triu(self.exchange.talks)).tolist()
        ]
        return Pipeline.connecting(self.holders, crossing, self.ties)

    @cached_property
    def working_bytes(self) -> Array:
        """What they need while they compute, beyond what they keep.

        Where an accelerator holds two, it computes one of them at a time: the smaller has nothing.
        """
        stages = numpy.arange(len(self.holders))
        inside = self.stage_of[:-1] == stages[:, None]
        found = self.workload.working_bytes_of_sets(inside, stages == stages[-1], self.replicas)
        if self.placement.is_folded:
            other, first = found[::-1], stages < len(stages) / 2
            found = numpy.where((found > other) | ((found == other) & first), found, 0.0)
        return found

    def in_flight(self, per_link: int | tuple[int, ...]) -> Array:
        """Return the parts in flight, as :meth:`drlpp.schedule.pipeline.Pipeline.in_flight` does.

        Where an accelerator holds two stages, schedules flush, and no more than a minibatch is.
        """
        if self.placement.is_folded:
            return numpy.ones(len(self.replicas))
        return numpy.array(self.pipeline.in_flight(per_link), dtype=float)

    def memory_bytes(self, memory: MemoryModel) -> Array:
        """Return what each of them needs on each of its accelerators in steady state."""
        work = replace(self.work, working_bytes=self.working_bytes)
        in_flight = self.in_flight(memory.method.in_flight_per_link)
        replicas, stages = self.replicas.astype(numpy.float64), range(len(self.holders))
        return memory.stage_bytes(work, in_flight, replicas, stages)

    def on_accelerators(self, of_stages: Array) -> Array:
        """Return what the accelerators of every stage have of all stages that they hold."""
        return of_stages + of_stages[::-1] if self.placement.is_folded else of_stages
