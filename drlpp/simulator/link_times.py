"""What single messages of a simulated placement take, with nothing else on the link."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from drlpp.costs.buckets import buckets_of
from drlpp.costs.workload import Workload
from drlpp.placement.measurement import LinkUsage
from drlpp.simulator.simulation import Simulation
from drlpp.specs.cluster import Cluster


def link_times(
    simulation: Simulation, workload: Workload, cluster: Cluster
) -> tuple[LinkUsage, ...]:
    """Return the largest message of every way that messages took, and its seconds.

    The seconds are latency + bytes / bandwidth.

    In a ring of m replicas a message is the m-th part of a bucket of gradients, from every replica
    to the next.

    Args:
        simulation: a placement that was played.
        workload, cluster: that it was played with.
    """
    largest: dict[tuple[int, int], float] = {}
    for sender, receiver, bytes_ in _messages(simulation, workload):
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


def _messages(simulation: Simulation, workload: Workload) -> Iterator[tuple[int, int, float]]:
    """Yield sender, receiver and bytes of messages."""
    workers = simulation.accelerators
    routes, sizes = simulation.program.routes, simulation.message_bytes
    messages = [
        (workers[route.sender], workers[route.receiver], bytes_)
        for route, bytes_ in zip(routes, sizes, strict=True)
    ]
    yield from sorted(messages)
    for stage in simulation.placement.stages:
        ring = stage.accelerators
        if len(ring) > 1:
            buckets = [bucket.bytes_ for bucket in buckets_of(workload, stage.operators)]
            for sender, receiver in pairwise((*ring, ring[0])) if buckets else ():
                yield sender, receiver, max(buckets) / len(ring)
