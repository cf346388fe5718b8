"""Timing what messages take between the workers of a session, while nothing else is sent."""

from __future__ import annotations

from collections.abc import Mapping

from drlpp.placement.measurement import LinkUsage
from drlpp.runtime.comm.link_timing import routes_of
from drlpp.runtime.ipc.protocol import LinkTimes, RunResult, TimeLink
from drlpp.runtime.session.cluster_discovery import ends_to_measure
from drlpp.runtime.session.worker_group import WorkerGroup
from drlpp.schedule.pipeline import Pipeline
from drlpp.specs.cluster import Link

_WAY_REPEATS = 3
_LINK_REPEATS = 5
"""Timed messages for each repeat of an operator: messages are quick, and scatter more."""

_SMALL_BYTES, _LARGE_BYTES = 1024, 4 * 1024 * 1024
_LEAST_TRANSFER = 0.1
"""The least part of a large message's seconds that counts for its bytes rather than its way."""


def time_ways(
    workers: WorkerGroup, pipeline: Pipeline, results: Mapping[int, RunResult]
) -> tuple[LinkUsage, ...]:
    """Time the largest message of a run on every way, one way at a time.

    Args:
        workers: of the session.
        pipeline: that ran.
        results: of its workers.

    Raises:
        RunFailure: if the workers fail.
    """
    found = []
    transport = workers.transport(pipeline.workers)
    routes = set(pipeline.routes)
    for sender, receiver, bytes_ in routes_of(pipeline, results):
        size = max(bytes_, 1)
        # Replicas have no links of their own where every way has its group.
        linked = not transport.directed or {(sender, receiver), (receiver, sender)} <= routes
        name = None if linked else workers.new_name("link")
        command = TimeLink(sender, receiver, (size,), _WAY_REPEATS, name, transport)
        times = workers.execute({sender: command, receiver: command})[sender]
        found.append(
            LinkUsage(sender=sender, receiver=receiver, bytes_=bytes_, seconds=times.seconds[size])
        )
    return tuple(found)


def time_hosts(workers: WorkerGroup, repeats: int) -> dict[tuple[int, int], Link]:
    """Time the links within a host and between hosts; return them by the workers at their ends.

    Args:
        workers: of the session.
        repeats: of an operator, where this is part of a profile.

    Raises:
        RunFailure: if the workers fail.
    """
    found = {}
    for ends in ends_to_measure(workers.hosts.places):
        command = TimeLink(
            *ends,
            (_SMALL_BYTES, _LARGE_BYTES),
            _LINK_REPEATS * repeats,
            workers.new_name("link"),
            workers.transport(ends),
        )
        found[ends] = link_of(workers.command(dict.fromkeys(ends, command))[ends[0]])
    return found


def link_of(times: LinkTimes) -> Link:
    """Return the latency of a small message, and the bandwidth of what a large one takes more.

    The difference of two times that scatter may come to nothing, so it counts as a part of the
    large message's time at least: the bandwidth is at most ten times what that message achieved.
    """
    small, large = times.seconds[_SMALL_BYTES], times.seconds[_LARGE_BYTES]
    transfer_seconds = max(large - small, _LEAST_TRANSFER * large)
    return Link(
        bandwidth_bytes_per_second=_LARGE_BYTES / transfer_seconds,
        latency_seconds=min(small, large),
    )
