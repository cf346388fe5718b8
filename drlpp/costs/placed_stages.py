"""The stages of a placement as arrays: what they do, send each other, hold, and take by the rule.

The rule is that of :mod:`drlpp.costs.stage_cost` with what takes a whole placement to know: the
messages of :mod:`drlpp.costs.message_load`, and how often copies of weights are updated. Searches
ask for thousands of placements, :func:`drlpp.costs.analytic_model.predict` for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy
from numpy.typing import NDArray

from drlpp.costs.memory import MemoryModel
from drlpp.costs.message_load import MessageLoad, TiedSums
from drlpp.costs.stage_cost import (
    Array,
    CostModel,
    Group,
    Indices,
    StageSeconds,
    StageWork,
    sums_of,
)
from drlpp.costs.tensors import TransferArrays
from drlpp.costs.workload import Workload
from drlpp.placement.placement import Placement
from drlpp.schedule.per_stage import of_links
from drlpp.schedule.pipeline import Pipeline
from drlpp.specs.cluster import Cluster

_Flags = NDArray[numpy.bool_]
_Holders = tuple[tuple[int, ...], ...]


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
    makes: _Flags

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
    def talks(self) -> _Flags:
        """Which stages exchange tensors at all; ``(stages, stages)``."""
        return self.makes | self.makes.T


@dataclass(frozen=True, eq=False)
class PlacedStages:
    """The stages of a valid placement of a workload; arrays have a value for each."""

    workload: Workload
    placement: Placement

    @cached_property
    def holders(self) -> _Holders:
        """The accelerators of every stage."""
        return tuple(stage.accelerators for stage in self.placement.stages)

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
    def work(self) -> StageWork:
        """What they do for a minibatch, each by itself."""
        stages = len(self.holders)
        return self.workload.work_of(
            self.total,
            incoming_bytes=self.exchange.incoming_bytes,
            outgoing_bytes=self.exchange.outgoing_bytes,
            last=numpy.arange(stages) == stages - 1,
        )

    @cached_property
    def tied(self) -> TiedSums:
        """What copies of weights take."""
        operators = self.stage_of[:-1].tolist()
        return TiedSums.of(self.workload, self.work, operators, self.replicas.tolist())

    @cached_property
    def pipeline(self) -> Pipeline:
        """The shape: accelerators, and which stages exchange tensors."""
        makes, sent = self.exchange.makes, self.exchange.bytes_ > 0
        # Tensors of other projects' problems may also lead back.
        crossing = [
            (one, other, bool(sent[other, one] or makes[other, one]))
            for one, other in numpy.argwhere(numpy.triu(self.exchange.talks)).tolist()
        ]
        ties = self.workload.ties_between(self.stage_of[:-1].tolist())
        return Pipeline.connecting(self.holders, crossing, ties)

    @cached_property
    def working_bytes(self) -> Array:
        """What they need while they compute, beyond what they keep.

        Where an accelerator holds two, it computes one of them at a time: the smaller has nothing.
        """
        stages = numpy.arange(len(self.holders))
        inside = self.stage_of[:-1] == stages[:, None]
        found = self.workload.working_bytes_of_sets(inside, stages == stages[-1])
        if self.placement.is_folded:
            other, first = found[::-1], stages < len(stages) / 2
            found = numpy.where((found > other) | ((found == other) & first), found, 0.0)
        return found

    def in_flight(self, per_link: int | tuple[int, ...]) -> Array:
        """Return the parts in flight, as :meth:`drlpp.schedule.pipeline.Pipeline.in_flight` does.

        Where an accelerator holds two stages, schedules flush, and no more than a minibatch is.
        """
        replicas, talks = self.replicas, self.exchange.talks
        if self.placement.is_folded:
            return numpy.ones(len(replicas))
        into = replicas * (1 + numpy.array([0, *of_links(per_link, len(replicas))]))
        behind = numpy.zeros(len(replicas), dtype=int)
        for stage in reversed(range(len(replicas))):
            later = (into + behind)[stage + 1 :][talks[stage, stage + 1 :]]
            behind[stage] = later.max(initial=0)
        return 1 + numpy.ceil(behind / replicas)

    def memory_bytes(self, memory: MemoryModel) -> Array:
        """Return what each of them needs on each of its accelerators in steady state."""
        work = replace(self.work, working_bytes=self.working_bytes)
        in_flight = self.in_flight(memory.in_flight_per_link)
        return memory.stage_bytes(work, in_flight, self.replicas.astype(numpy.float64))

    def on_accelerators(self, of_stages: Array) -> Array:
        """Return what the accelerators of every stage have of all stages that they hold."""
        return of_stages + of_stages[::-1] if self.placement.is_folded else of_stages


@dataclass(frozen=True, eq=False)
class PlacedSeconds:
    """What a placement takes on a cluster, in seconds per minibatch.

    Attributes:
        stages: of every stage by itself, but for messages, which are of its accelerators.
        accelerators: of the accelerators of every stage, with all that they hold.
        shared: of the ports that belong to no accelerator, by their names.
        slowest: of the slowest part of all.
    """

    stages: StageSeconds
    accelerators: StageSeconds
    shared: Mapping[str, float]
    slowest: float


@dataclass(eq=False)
class PlacementRule:
    """The rule for placements of workloads on one cluster.

    Attributes:
        cluster: the accelerators, their speeds and their links.
        costs: whether compute and communication overlap.
    """

    cluster: Cluster
    costs: CostModel = "overlapped"
    _groups: dict[tuple[_Holders, bytes], Group] = field(default_factory=dict)

    def seconds(self, placed: PlacedStages) -> PlacedSeconds:
        """Return what the stages of a placement take."""
        work, linked = placed.work, placed.exchange.talks
        copies = placed.tied.bytes_ if placed.workload.ties else ()
        for sharing, _ in copies:
            linked[numpy.ix_(sharing, sharing)] = True
        numpy.fill_diagonal(linked, False)
        if self.costs == "overlapped" and placed.workload.ties:
            work = replace(work, tied_updates=placed.tied.updates)
        stages = StageSeconds.of(work, self._groups_of(placed.holders, linked), self.costs)
        shared: dict[str, float] = {}
        if self.costs == "overlapped":
            load = MessageLoad.of(self.cluster, placed.holders, placed.exchange.bytes_, copies)
            stages, shared = replace(stages, messages=load.stages), load.shared
        of_all = stages.of_both(self.costs) if placed.placement.is_folded else stages
        slowest = max(shared.values(), default=0.0)
        return PlacedSeconds(
            stages, of_all, shared, max(slowest, float(of_all.total(self.costs).max()))
        )

    def _groups_of(self, holders: _Holders, linked: _Flags) -> Group:
        """Return the groups of stages; links to others are looked at where they may differ."""
        # A search comes back to the same few, and looking at all their links takes long.
        one_link = len(self.cluster.host_names) == 1
        key = holders, b"" if one_link else linked.tobytes()
        if key not in self._groups:
            groups = []
            for index, held in enumerate(holders):
                partners = () if one_link else numpy.flatnonzero(linked[index])
                others = tuple(a for partner in partners for a in holders[partner])
                groups.append(Group.of(self.cluster, held, others))
            self._groups[key] = Group.together(groups)
        return self._groups[key]
