"""What searches minimise: a placement's seconds per minibatch, by the problem's rule by default.

The rule is :func:`drlpp.costs.analytic_model.predict`'s, with the workload's tensors as arrays,
since a search asks thousands of times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace

import numpy
from numpy.typing import NDArray

from drlpp.costs.analytic_model import group_of
from drlpp.costs.memory import MemoryModel
from drlpp.costs.message_load import MessageLoad
from drlpp.costs.stage_cost import Groups, StageSeconds
from drlpp.costs.stage_work import Array, StageWork, sums_of
from drlpp.costs.tensors import TransferArrays
from drlpp.costs.tied_sums import TiedSums
from drlpp.placement.placement import Placement
from drlpp.planners.problem.problem import PlanningProblem
from drlpp.schedule.per_stage import of_links

Objective = Callable[[Placement], float]
"""Seconds per minibatch of a valid placement: predicted, simulated or measured."""

_Flags = NDArray[numpy.bool_]
_Holders = tuple[tuple[int, ...], ...]
_Key = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
"""The operators and the accelerators of every stage."""


class AnalyticObjective:
    """The problem's rule; a placement that does not fit in memory is worse than all that do fit.

    What it misses is added on top of a time that no placement reaches, so that a search that starts
    outside the limits finds its way in.
    """

    def __init__(self, problem: PlanningProblem) -> None:
        cluster = problem.cluster
        self.problem = problem
        self._one_link = len(cluster.host_names) == 1
        self._groups: dict[tuple[_Holders, bytes], Groups] = {}
        self._known: dict[_Key, tuple[float, StageWork, _Flags]] = {}
        self._limits = numpy.array(
            [numpy.inf if limit is None else limit for limit in cluster.memory_bytes]
        )
        self._limited = bool(numpy.isfinite(self._limits).any())
        self._unreachable_seconds = _unreachable_seconds(problem)

    def with_memory(self, memory: MemoryModel) -> AnalyticObjective:
        """Return the rule of the same problem with another memory; both remember together."""
        other = copy(self)
        other.problem = replace(self.problem, memory=memory)
        return other

    def __call__(self, placement: Placement) -> float:
        """Return seconds per minibatch, with a penalty for missing memory."""
        seconds, missing = self.seconds_and_missing(placement)
        return seconds if missing == 0 else self._unreachable_seconds * (1 + missing) + seconds

    def fits(self, value: float) -> bool:
        """Return whether a value of this objective belongs to a placement that fits in memory."""
        return value < self._unreachable_seconds

    def seconds_and_missing(self, placement: Placement) -> tuple[float, float]:
        """Return seconds per minibatch by the rule, and the missing bytes.

        The bytes are given per byte of memory, added up over the stages.
        """
        # A search comes back to placements, also with other methods that only memory knows.
        key = tuple((stage.operators, stage.accelerators) for stage in placement.stages)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._placed(placement)
        seconds, work, talks = found
        if not self._limited:
            return seconds, 0.0
        return seconds, self._missing(placement, work, talks)

    def _placed(self, placement: Placement) -> tuple[float, StageWork, _Flags]:
        """Return seconds per minibatch, the work of the stages, and which of them talk."""
        problem, stages = self.problem, placement.stages
        stage_of = numpy.empty(len(problem.workload) + 1, dtype=int)
        for index, stage in enumerate(stages):
            stage_of[list(stage.operators)] = index
        stage_of[-1] = len(stages) - 1

        incoming, outgoing, bytes_, talks = _crossing(
            self.problem.workload.transfer_arrays, stage_of, len(stages)
        )

        def total(values: Array) -> Array:
            return sums_of(stage_of[:-1], values, len(stages))

        work = problem.workload.work_of(
            total,
            incoming_bytes=incoming,
            outgoing_bytes=outgoing,
            last=numpy.arange(len(stages)) == len(stages) - 1,
            working_bytes=problem.workload.working_bytes_in(placement) if self._limited else 0.0,
        )
        together, linked = work, talks
        copies: Sequence[tuple[tuple[int, ...], float]] = ()
        if problem.workload.ties:
            tied = TiedSums.of(
                problem.workload, work, stage_of.tolist(), [len(s.accelerators) for s in stages]
            )
            copies, linked = tied.bytes_, talks.copy()
            for sharing, _ in copies:
                linked[numpy.ix_(sharing, sharing)] = True
            numpy.fill_diagonal(linked, False)
            if problem.costs == "overlapped":
                together = tied.applied(work, range(len(stages)))
        holders = tuple(stage.accelerators for stage in stages)
        group = self._groups_of(holders, linked)
        seconds, slowest = StageSeconds.of(together, group, problem.costs), 0.0
        if problem.costs == "overlapped":
            load = MessageLoad.of(problem.cluster, holders, bytes_, copies)
            seconds = replace(seconds, messages=load.stages)
            slowest = max(load.shared.values(), default=0.0)
        if placement.is_folded:
            seconds = seconds.of_both(problem.costs)
        slowest = max(slowest, float(seconds.total(problem.costs).max()))
        return slowest, work, talks

    def _groups_of(self, holders: _Holders, linked: _Flags) -> Groups:
        """Return the groups of stages; links to others are looked at where they may differ."""
        # A search comes back to the same few, and looking at all their links takes long.
        key = holders, b"" if self._one_link else linked.tobytes()
        if key not in self._groups:
            groups = []
            for index, held in enumerate(holders):
                partners = () if self._one_link else numpy.flatnonzero(linked[index])
                others = tuple(a for partner in partners for a in holders[partner])
                groups.append(group_of(self.problem.cluster, held, others))
            self._groups[key] = Groups.of(groups)
        return self._groups[key]

    def _missing(self, placement: Placement, work: StageWork, talks: _Flags) -> float:
        limits = numpy.array(
            [self._limits[list(stage.accelerators)].min() for stage in placement.stages]
        )
        replicas = numpy.array([len(stage.accelerators) for stage in placement.stages])
        memory = self.problem.memory
        if placement.is_folded:
            # As in predict: such schedules flush, and an accelerator has both of its stages.
            needed = memory.stage_bytes(work, numpy.ones(len(replicas)), replicas)
            needed, limits = (needed + needed[::-1])[: len(needed) // 2], limits[: len(limits) // 2]
        else:
            in_flight = _in_flight(replicas, talks, memory.in_flight_per_link)
            needed = memory.stage_bytes(work, in_flight, replicas)
        return float((numpy.maximum(needed - limits, 0) / limits).sum())


def _crossing(
    tensors: TransferArrays, stage_of: NDArray[numpy.int64], stages: int
) -> tuple[Array, Array, Array, _Flags]:
    """Return incoming and outgoing bytes of every stage, those from stage to stage, and talks.

    Stages talk between which there are tensors at all, be they empty.

    In the former a tensor counts once for the stage that makes it, in the latter for each that
    reads it.
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
    talks = numpy.zeros(stages * stages, dtype=bool)
    talks[there] = talks[back] = True
    once = present.any(axis=1)
    sent, returned = (
        sums_of(sources[once], bytes_[once], stages)
        for bytes_ in (tensors.forward_bytes, tensors.backward_bytes)
    )
    incoming = sums_of(targets, forward, stages) + returned
    outgoing = sums_of(targets, backward, stages) + sent
    shape = (stages, stages)
    return incoming, outgoing, between.reshape(shape), talks.reshape(shape)


def _in_flight(
    replicas: NDArray[numpy.int64], talks: _Flags, per_link: int | tuple[int, ...]
) -> Array:
    """Return what :meth:`drlpp.schedule.pipeline.Pipeline.in_flight` does, as an array."""
    links = of_links(per_link, len(replicas))
    into = replicas * (1 + numpy.array([0, *links]))
    behind = numpy.zeros(len(replicas), dtype=int)
    for stage in reversed(range(len(replicas))):
        later = (into + behind)[stage + 1 :][talks[stage, stage + 1 :]]
        behind[stage] = later.max(initial=0)
    return 1 + numpy.ceil(behind / replicas)


def _unreachable_seconds(problem: PlanningProblem) -> float:
    """Return more seconds than any stage of any placement takes.

    They are for everything at once, all of it as slow as can be. An all-reduce on m replicas takes
    2(m − 1)/m² of the weights and 2(m − 1)/m latencies, and with microbatches it may take place for
    every minibatch, as updates may. A tensor may be sent to each of its readers.
    """
    workload, cluster = problem.workload, problem.cluster
    links = [*cluster.levels, *(host.network for host in cluster.hosts if host.network)]
    bandwidth = min(link.bandwidth_bytes_per_second for link in links)
    latency = max(link.latency_seconds for link in links)
    bytes_ = workload.parameter_bytes.sum()
    bytes_ += sum((len(tensor.members) - 1) * tensor.bytes_ for tensor in workload.transfers)
    copies = sum(len(tie.operators) * tie.bytes_ for tie in workload.ties)
    bytes_ += 2 * cluster.accelerators * copies
    whole = workload.stage(range(len(workload)), last=False)
    updates = min(workload.microbatches, cluster.accelerators)
    work = whole.seconds + updates * whole.update_seconds + whole.sharing_seconds
    # Of a second stage on an accelerator.
    passes = workload.forward_overhead_seconds + workload.backward_overhead_seconds
    work += (workload.stages_held - 1) * (
        workload.microbatches * passes + updates * workload.update_overhead_seconds
    )
    compute = work / min(cluster.speeds)
    return float(
        1.0 + compute + updates * (2 * workload.stages_held * latency + bytes_ / bandwidth)
    )
