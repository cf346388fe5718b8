"""The cluster that a session's workers are: their links and their speeds, as measured.

Profiles are measured on the first machine. Others, and other kinds of devices, train the whole
model on one accelerator as that does, which tells how fast they are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING

from drlpp.errors import RunFailure
from drlpp.runtime.device.devices import DeviceFacts
from drlpp.runtime.hosts.host import WorkerHost
from drlpp.runtime.ipc.protocol import Route, TimeLink, TimeTraining, TrainingTimes
from drlpp.runtime.worker.operator_timing import BACKWARD, FORWARD
from drlpp.specs.cluster import Cluster, Host, Link, merged

if TYPE_CHECKING:
    from drlpp.runtime.session.session import ClusterSession
    from drlpp.runtime.session.worker_group import WorkerGroup

_ALONE = Link(bandwidth_bytes_per_second=1e12)
"""The link of a worker that is alone on its host, where it sends nothing."""

_AS_FAST = 0.8
"""The part of the largest bandwidth, or of a speed, from which on others count as equal."""

_LINK_REPEATS = 5
"""Timed messages for each repeat of an operator: messages are quick, and scatter more."""

_SMALL_BYTES, _LARGE_BYTES = 1024, 4 * 1024 * 1024
_LEAST_TRANSFER = 0.1
"""The least part of a large message's seconds that counts for its bytes rather than its way."""


def time_hosts(workers: WorkerGroup, repeats: int) -> dict[Route, Link]:
    """Time the links within a host and between hosts; return them by the workers at their ends."""
    found = {}
    for ends in ends_to_measure(workers.of_worker.values()):
        sizes, group = (_SMALL_BYTES, _LARGE_BYTES), workers.new_link(*ends)
        command = TimeLink(*ends, sizes, _LINK_REPEATS * repeats, group)
        found[ends] = link_of(workers.command(dict.fromkeys(ends, command))[ends[0]])
    return found


def link_of(times: Mapping[int, float]) -> Link:
    """Return the latency of a small message, and the bandwidth of what a large one takes more.

    The difference of two times that scatter may come to nothing, so it counts as a part of the
    large message's time at least: the bandwidth is at most ten times what that message achieved.
    """
    small, large = times[_SMALL_BYTES], times[_LARGE_BYTES]
    transfer_seconds = max(large - small, _LEAST_TRANSFER * large)
    return Link(
        bandwidth_bytes_per_second=_LARGE_BYTES / transfer_seconds,
        latency_seconds=min(small, large),
    )


def ends_to_measure(hosts: Iterable[WorkerHost]) -> list[Route]:
    """Return pairs of workers whose links tell about all others.

    One pair on the first host that has two workers, and one from the controller's host to every
    other.
    """
    first, *others = found = list({host.name: host.workers for host in hosts}.values())
    inside = [(workers[0], workers[1]) for workers in found if len(workers) > 1]
    return inside[:1] + [(first[0], workers[0]) for workers in others]


def time_speeds(
    session: ClusterSession, training: TimeTraining, known: Mapping[int, TrainingTimes]
) -> list[float]:
    """Return the speeds of all workers, those that are known being the measure.

    Workers of one machine with devices of one name are equally fast, so only those train of whose
    kind none is known.

    Args:
        session: whose workers are prepared.
        training: of the whole model.
        known: what workers of the first machine took for it.
    """
    kinds = [(h.machine, session.devices[w].name) for w, h in session.of_worker.items()]
    seen, found = {kinds[worker] for worker in known}, dict(known)
    if others := [worker for worker, kind in enumerate(kinds) if kind not in seen]:
        try:
            found |= session.command(dict.fromkeys(others, training))
        except RunFailure as failure:
            session.prepare()
            session.note(f"all accelerators count as equally fast, since others failed: {failure}")
    return speeds_of(kinds, found, known)


def speeds_of(
    kinds: Sequence[Hashable], times: Mapping[int, TrainingTimes], first: Iterable[int]
) -> list[float]:
    """Return the speed of every worker by its kind, from what some took; 1 where none did."""

    def seconds(workers: Iterable[int]) -> float:
        passes = ((times[w].seconds[FORWARD][0], times[w].seconds[BACKWARD][0]) for w in workers)
        return median(f + b for both in passes for f, b in zip(*both, strict=True))

    usual, speeds = seconds(first), dict.fromkeys(kinds, 1.0)
    for kind in speeds:
        if alike := [worker for worker in times if kinds[worker] == kind]:
            speeds[kind] = usual / seconds(alike)
    found = dict(zip(speeds, merged([*speeds.values()], 1 / _AS_FAST - 1), strict=True))
    return [found[kind] / found[kinds[0]] for kind in kinds]


def session_cluster(
    hosts: Sequence[WorkerHost],
    devices: Sequence[DeviceFacts],
    speeds: Sequence[float],
    links: Mapping[Route, Link],
) -> Cluster:
    """Return the cluster that has the workers as accelerators, by links of :func:`time_hosts`."""
    names = [host.name for host in hosts]
    between = {names[other]: link for (_, other), link in links.items() if names[other] != names[0]}
    fastest = max(between.values(), key=lambda link: link.bandwidth_bytes_per_second, default=None)
    inside = next((link for (a, b), link in links.items() if names[a] == names[b]), _ALONE)
    lines = []
    for name, workers in {host.name: host.workers for host in hosts}.items():
        memory: list[float | None] = [devices[worker].memory_bytes for worker in workers]
        if gpus := {devices[worker].identity for worker in workers} - {""}:
            # CPUs have limits of their own, GPUs may be shared.
            memory = [min(filter(None, memory)) / -(-len(workers) // len(gpus))] * len(workers)
        lines += [
            Host(
                name=name,
                accelerators=len([*alike]),
                device=next((devices[w].type for w in workers if devices[w].identity), "cpu"),
                memory_bytes=bytes_,
                network=_own_network(between.get(name), fastest),
            )
            for bytes_, alike in groupby(memory)
        ]
    cluster = Cluster(hosts=tuple(lines), within_host=inside, between_hosts=fastest)
    return cluster.with_speeds(speeds) if set(speeds) != {1.0} else cluster


def crowded_host(
    speeds: Sequence[float], hosts: Sequence[WorkerHost], devices: Sequence[DeviceFacts]
) -> str | None:
    """Say which host has more CPU workers than cores, if these emulate no accelerators."""
    for host, device in zip(hosts, devices, strict=True):
        if min(speeds) == 1 and device.type == "cpu" and len(host.workers) > len(host.cores):
            return (
                f"{len(host.workers)} workers share {len(host.cores)} cores of {host.name}, but "
                "predictions assume a core for each; start as many workers as cores, or emulate "
                "slower accelerators (speeds)"
            )
    return None


def _own_network(link: Link | None, fastest: Link | None) -> Link | None:
    if link is None or fastest is None:
        return None
    slow = link.bandwidth_bytes_per_second < _AS_FAST * fastest.bandwidth_bytes_per_second
    return link if slow else None
