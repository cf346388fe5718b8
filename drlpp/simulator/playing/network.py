"""The ports that messages pass through: first come, first served, each for as long as it takes.

Every accelerator has a port for what it sends and one for what it receives, since links carry both
directions at once. A message holds both for bytes / bandwidth of the link between its ends. To
another host it also passes the network of both hosts, to another rack that of both racks; these
are shared by all accelerators behind them, and held for bytes / their own bandwidth. A message
streams: it enters the next port as soon as that is free, not when it has left the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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
        sender, receiver = self.accelerators[route.sender], self.accelerators[route.receiver]
        link = self.cluster.link(sender, receiver)
        seconds = bytes_ / link.bandwidth_bytes_per_second
        out, into = (2 * route.sender, seconds), (2 * route.receiver + 1, seconds)
        level = self.cluster.level(sender, receiver)
        between = self._between(sender, receiver, level, bytes_) if level else ()
        return Path(route.receiver, (out, *between, into), link.latency_seconds)

    def _between(self, sender: int, receiver: int, level: int, bytes_: float) -> tuple[Hop, ...]:
        cluster = self.cluster
        out = self._host("out of host", sender, bytes_)
        into = self._host("into host", receiver, bytes_)
        if level == 1:
            return (out, into)
        assert cluster.between_racks is not None
        seconds = bytes_ / cluster.between_racks.bandwidth_bytes_per_second
        out_of_rack = self._port("out of rack", cluster.rack_of[sender])
        into_rack = self._port("into rack", cluster.rack_of[receiver])
        return (out, (out_of_rack, seconds), (into_rack, seconds), into)

    def _host(self, what: str, accelerator: int, bytes_: float) -> Hop:
        port = self._port(what, self.cluster.host_of[accelerator])
        return port, bytes_ / self.cluster.network(accelerator).bandwidth_bytes_per_second

    def _port(self, what: str, number: int) -> int:
        return self._shared.setdefault((what, number), self.ports)
