"""What searches minimise: a placement's seconds per minibatch, by the problem's rule by default."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace

import numpy

from drlpp.costs.memory import MemoryModel
from drlpp.costs.placed_stages import PlacedStages, PlacementRule
from drlpp.placement.placement import Placement
from drlpp.planners.problem.problem import PlanningProblem

Objective = Callable[[Placement], float]
"""Seconds per minibatch of a valid placement: predicted, simulated or measured."""

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
        self._rule = PlacementRule(cluster, problem.costs)
        self._known: dict[_Key, tuple[float, PlacedStages | None]] = {}
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
            placed = PlacedStages(self.problem.workload, placement)
            found = self._rule.seconds(placed).slowest, placed if self._limited else None
            self._known[key] = found
        seconds, limited = found
        return seconds, 0.0 if limited is None else self._missing(limited)

    def _missing(self, placed: PlacedStages) -> float:
        limits = numpy.array([self._limits[list(held)].min() for held in placed.holders])
        needed = placed.on_accelerators(placed.memory_bytes(self.problem.memory))
        if placed.placement.is_folded:
            needed, limits = needed[: len(needed) // 2], limits[: len(limits) // 2]
        return float((numpy.maximum(needed - limits, 0) / limits).sum())


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
