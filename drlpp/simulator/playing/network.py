"""The ports that messages and sums pass through: first come, first served, one after the other.

Every accelerator has a port for what it sends and one for what it receives, since links carry both
directions at once. A message holds both for bytes / bandwidth of the link between its ends. To
another host it also passes the network of both hosts; these are shared by all accelerators behind
them, and held for bytes / their own bandwidth. A message streams: it enters the next port as soon
as that is free, not when it has left the one before. What an all-reduce sends over a link of its
ring passes through the same ports, all of a bucket at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from drlpp.simulator.playing.program import Route
from drlpp.specs.cluster import Cluster

Hop = tuple[int, float]
"""(port, seconds that it is held)."""


@dataclass(frozen=True, slots=True)
class Path:
    """The way of a message: its hops, then the latency, which holds nobody up."""

    receiver: int
    hops: tuple[Hop, ...]
    latency_seconds: float


@dataclass(frozen=True, slots=True)
class Ring:
    """The way of an all-reduce among replicas.

    Attributes:
        links: the hops of each link of the ring, which carries its part of all that is summed; none
            where nothing else passes through its ports.
        latency_seconds: after all of it has passed; without links what the whole sum takes.
    """

    links: tuple[tuple[Hop, ...], ...]
    latency_seconds: float

    @property
    def ports(self) -> list[int]:
        """All that it passes through, as often as it does."""
        return [port for hops in self.links for port, _ in hops]

    def carrying(self, bytes_: float, *, alone: bool) -> Ring:
        """Return the ring for a byte as one for so many, without links if it is alone."""
        if not alone:
            links = tuple(
                tuple([(port, bytes_ * seconds) for port, seconds in hops]) for hops in self.links
            )
            return Ring(links, self.latency_seconds)
        longest = max((seconds for hops in self.links for _, seconds in hops), default=0.0)
        return Ring((), bytes_ * longest + self.latency_seconds)


@dataclass
class Network:
    """Gives out the ports of a cluster.

    Attributes:
        cluster: with its links.
        accelerators: of the workers by index.
    """

    cluster: Cluster
    accelerators: Sequence[int]
    _shared: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def ports(self) -> int:
        """How many have been given out."""
        return 2 * len(self.accelerators) + len(self._shared)

    def path(self, route: Route, bytes_: float) -> Path:
        """Return the way of a message of ``bytes_`` on this route."""
        return Path(route.receiver, *self._way(route.sender, route.receiver, bytes_))

    def ring(self, workers: Sequence[int]) -> Ring:
        """Return the way of an all-reduce of a byte among workers, by their indices.

        It is 2(m − 1) messages of 1 / m bytes on each link, in step.
        """
        replicas = len(workers)
        if replicas == 1:
            return Ring((), 0.0)
        part = 2 * (replicas - 1) / replicas
        ways = [self._way(one, other, part) for one, other in pairwise((*workers, workers[0]))]
        latency = max(latency for _, latency in ways)
        return Ring(tuple(hops for hops, _ in ways), 2 * (replicas - 1) * latency)

    def _way(self, worker: int, other: int, bytes_: float) -> tuple[tuple[Hop, ...], float]:
        """Return what ``bytes_`` from one worker to another pass through, and the latency."""
        sender, receiver = self.accelerators[worker], self.accelerators[other]
        link = self.cluster.link(sender, receiver)
        seconds = bytes_ / link.bandwidth_bytes_per_second
        out, into = (2 * worker, seconds), (2 * other + 1, seconds)
        if not self.cluster.level(sender, receiver):
            return (out, into), link.latency_seconds
        between = (
            self._host("out of host", sender, bytes_),
            self._host("into host", receiver, bytes_),
        )
        return (out, *between, into), link.latency_seconds

    def _host(self, what: str, accelerator: int, bytes_: float) -> Hop:
        port = self._port(what, self.cluster.host_of[accelerator])
        return port, bytes_ / self.cluster.network(accelerator).bandwidth_bytes_per_second

    def _port(self, what: str, number: int) -> int:
        return self._shared.setdefault((what, number), self.ports)
