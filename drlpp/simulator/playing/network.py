"""The ports that messages and sums pass through: first come, first served, one after the other.

A message holds each port on its way (:func:`drlpp.costs.placement_rule.ports_between`) for bytes /
bandwidth. It streams: it enters the next port as soon as that is free, not when it has left the one
before. What an all-reduce sends over a link of its ring passes through the same ports, all of a
bucket at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from drlpp.costs.placement_rule import Port, ports_between
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
    _numbers: dict[Port, int] = field(default_factory=dict)

    @property
    def ports(self) -> int:
        """How many have been given out."""
        return len(self._numbers)

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
        hops = tuple(
            (self._numbers.setdefault(port, self.ports), bytes_ / bandwidth)
            for port, bandwidth in ports_between(self.cluster, sender, receiver)
        )
        return hops, self.cluster.link(sender, receiver).latency_seconds
