"""A cluster that plays schedules instead of running them."""

from __future__ import annotations

from functools import lru_cache, partial
from itertools import pairwise

import numpy
from rich.filesize import decimal

from drlpp.capturing.graph import OpGraph
from drlpp.costs.buckets import buckets_of
from drlpp.costs.memory import MemoryModel
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import FailedMeasurement, LinkUsage, Measurement, Outcome
from drlpp.placement.placement import Placement
from drlpp.schedule.method import DEFAULT_METHOD, Method
from drlpp.simulator.simulation import Simulation, simulate
from drlpp.specs.cluster import Cluster


class SimulatedCluster:
    """A cluster that measures placements as a live one does, by playing their schedules.

    Args:
        profile: a model and its costs on an accelerator of speed 1.
        cluster: the accelerators and their links.
        method: the schedule, and the weight policy on it.
        memory: what a stage keeps; that of ``method`` with SGD and momentum if left out.
    """

    def __init__(
        self,
        profile: Profile,
        cluster: Cluster,
        method: Method = DEFAULT_METHOD,
        memory: MemoryModel | None = None,
    ) -> None:
        self.profile = profile
        self.cluster = cluster
        self.method = method
        self.memory = memory
        self._workload = lru_cache(partial(Workload.of, profile))

    @property
    def graph(self) -> OpGraph:
        """The model."""
        return self.profile.graph

    @property
    def accelerators(self) -> int:
        """The number of accelerators."""
        return self.cluster.accelerators

    def measure(
        self, placement: Placement | Candidate | ExecutionPlan, minibatches: int = 30
    ) -> Outcome:
        """Play a candidate; the same one always gives the same measurement.

        One that needs more memory than an accelerator has is a failed measurement.

        Raises:
            InvalidInput: if it cannot run on this cluster.
        """
        plan = ExecutionPlan.taken(placement, self.graph, self.accelerators, self.method)
        workload = self._workload(plan.method)
        simulation = simulate(
            workload, self.cluster, plan.placement, plan.method, minibatches, self.memory
        )
        index = simulation.without_room(self.cluster)
        if index is not None:
            accelerator = simulation.accelerators[index]
            stage = simulation.program.stages_of[index][0]
            needed = round(simulation.memory_bytes[index])
            limit = round(self.cluster.memory_bytes[accelerator] or 0)
            return FailedMeasurement(
                failure="out of memory",
                reason=f"worker {accelerator} (stage {stage}) needs {decimal(needed)}, "
                f"but its accelerator has {decimal(limit)}",
            )
        steps = simulation.step_seconds
        return Measurement(
            seconds_per_minibatch=simulation.seconds_per_minibatch,
            median_seconds=float(numpy.median(steps)),
            standard_deviation_seconds=float(numpy.std(steps, ddof=1)) if len(steps) > 1 else 0.0,
            minibatches=simulation.window.length,
            steadiness=simulation.steadiness,
            workers=simulation.workers,
            links=_links(simulation, workload, self.cluster),
        )

    def close(self) -> None:
        """Do nothing: there are no workers to stop."""


def _links(simulation: Simulation, workload: Workload, cluster: Cluster) -> tuple[LinkUsage, ...]:
    """Return the largest message of every way that messages took, and its seconds.

    In a ring of m replicas a message is the m-th part of a bucket of gradients, from every replica
    to the next.
    """
    workers = simulation.accelerators
    routes = simulation.program.routes
    ways = zip(routes.senders, routes.receivers, simulation.pricing.bytes_of(routes), strict=True)
    messages = sorted(
        (workers[sender], workers[receiver], float(bytes_)) for sender, receiver, bytes_ in ways
    )
    for stage in simulation.placement.stages:
        ring = stage.accelerators
        buckets = [bucket.bytes_ for bucket in buckets_of(workload, stage.operators)]
        if len(ring) > 1 and buckets:
            each = max(buckets) / len(ring)
            messages += [(one, other, each) for one, other in pairwise((*ring, ring[0]))]
    largest: dict[tuple[int, int], float] = {}
    for sender, receiver, bytes_ in messages:
        way = (sender, receiver)
        largest[way] = max(largest.get(way, 0.0), bytes_)
    return tuple(
        LinkUsage(
            sender=sender,
            receiver=receiver,
            bytes_=round(bytes_),
            seconds=cluster.link(sender, receiver).seconds(round(bytes_)),
        )
        for (sender, receiver), bytes_ in largest.items()
    )
