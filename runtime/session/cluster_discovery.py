"""The cluster that a session's workers are: hosts, links between them, and how fast these are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress, groupby

from drlpp.runtime.device.devices import DeviceFacts
from drlpp.runtime.hosts.host import WorkerHost
from drlpp.runtime.ipc.protocol import GroupSpec, Route, TimeLink
from drlpp.runtime.session.worker_group import WorkerGroup
from drlpp.specs.cluster import Cluster, Host, Link

_ALONE = Link(bandwidth_bytes_per_second=1e12)
"""The link of a worker that is alone on its host, where it sends nothing."""

_AS_FAST = 0.8
"""The part of the fastest host's bandwidth from which on another host's network counts as equal."""

_LINK_REPEATS = 5
"""Timed messages for each repeat of an operator: messages are quick, and scatter more."""

_SMALL_BYTES, _LARGE_BYTES = 1024, 4 * 1024 * 1024
_LEAST_TRANSFER = 0.1
"""The least part of a large message's seconds that counts for its bytes rather than its way."""


def time_hosts(workers: WorkerGroup, repeats: int) -> dict[Route, Link]:
    """Time the links within a host and between hosts; return them by the workers at their ends."""
    found = {}
    for ends in ends_to_measure(workers.hosts.of_worker.values()):
        sizes, group = (_SMALL_BYTES, _LARGE_BYTES), link_between(workers, *ends)
        command = TimeLink(*ends, sizes, _LINK_REPEATS * repeats, group)
        found[ends] = link_of(workers.command(dict.fromkeys(ends, command))[ends[0]])
    return found


def link_between(workers: WorkerGroup, sender: int, receiver: int) -> GroupSpec:
    """Return a new group of the ends of a link."""
    ends = sender, receiver
    return workers.new_group("link", ends, routes=(ends, ends[::-1]))


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
    first, *others = found = list(_workers_by_host(hosts).values())
    inside = [(workers[0], workers[1]) for workers in found if len(workers) > 1]
    return inside[:1] + [(first[0], workers[0]) for workers in others]


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
    emulated = min(speeds) < 1
    lines = []
    for name, workers in _workers_by_host(hosts).items():
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
    return cluster.with_speeds(speeds) if emulated else cluster


def crowded_machine(
    speeds: Sequence[float], hosts: Sequence[WorkerHost], devices: Sequence[DeviceFacts]
) -> str | None:
    """Say which machine has more CPU workers than cores, if these emulate no accelerators."""
    if min(speeds) < 1:
        return None
    on_cpus = [device.type == "cpu" for device in devices]
    workers = Counter(host.machine for host in compress(hosts, on_cpus))
    for host in hosts:
        if (sharing := workers[host.machine]) > len(host.cores):
            return (
                f"{sharing} workers share {len(host.cores)} cores of {host.machine}, but "
                "predictions assume a core for each; start as many workers as cores, or emulate "
                "slower accelerators (speeds)"
            )
    return None


def computing_at_once(devices: Sequence[DeviceFacts], cores: int) -> int:
    """Return how many workers of a machine compute at full speed together: one per GPU, or core."""
    gpus = {device.identity for device in devices if device.type != "cpu"}
    return len(gpus) or cores


def _own_network(link: Link | None, fastest: Link | None) -> Link | None:
    if link is None or fastest is None:
        return None
    slow = link.bandwidth_bytes_per_second < _AS_FAST * fastest.bandwidth_bytes_per_second
    return link if slow else None


def _workers_by_host(hosts: Iterable[WorkerHost]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for worker, host in enumerate(hosts):
        found.setdefault(host.name, []).append(worker)
    return found
