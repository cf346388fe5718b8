"""The ports that messages and sums pass through: first come, first served, one after the other.

A message holds each port on its way (:func:`drlpp.costs.placement_rule.ports_between`) for bytes /
bandwidth. It streams: it enters the next port as soon as that is free, not when it has left the one
before. What an all-reduce sends over a link of its ring passes through the same ports, all of a
bucket at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy

from drlpp.costs.stage_cost import Array, Indices
from drlpp.specs.cluster import Cluster


class Links(NamedTuple):
    """What is sent from one worker to another, for some pairs of workers.

    Attributes:
        of: the pair of every hop, ascending.
        ports: that it enters.
        seconds: that it holds it.
        latency_seconds: of every pair, after the last hop; it holds nobody up.
    """

    of: Indices
    ports: Indices
    seconds: Array
    latency_seconds: Array


NO_LINKS = Links(*(numpy.empty(0, dtype) for dtype in (int, int, float, float)))


@dataclass(frozen=True, eq=False)
class Network:
    """The ports between the workers of a placement: two of each, then two of each host.

    Attributes:
        cluster: with its links.
        accelerators: of the workers by index.
    """

    cluster: Cluster
    accelerators: Sequence[int]

    @property
    def ports(self) -> int:
        """How many there are."""
        return 2 * (len(self.accelerators) + len(self.cluster.host_names))

    def links(self, senders: Indices, receivers: Indices, bytes_: Array) -> Links:
        """Return the ways of ``bytes_`` from one worker to another, by their indices."""
        hosts, workers = self._hosts, len(self.accelerators)
        out, into = hosts[senders], hosts[receivers]
        _, first, number = numpy.unique(
            out * len(self._network) + into, return_index=True, return_inverse=True
        )
        links = [
            self.cluster.link(self.accelerators[one], self.accelerators[other])
            for one, other in zip(senders[first].tolist(), receivers[first].tolist(), strict=True)
        ]
        bandwidth = numpy.array([link.bandwidth_bytes_per_second for link in links])[number]
        between = out != into
        ports = numpy.stack(
            [2 * senders, 2 * (workers + out), 2 * (workers + into) + 1, 2 * receivers + 1], axis=1
        )
        rates = numpy.stack([bandwidth, self._network[out], self._network[into], bandwidth], axis=1)
        passed = numpy.ones(ports.shape, dtype=bool)
        passed[:, 1:3] = between[:, None]
        return Links(
            of=passed.nonzero()[0],
            ports=ports[passed],
            seconds=(bytes_[:, None] / rates)[passed],
            latency_seconds=numpy.array([link.latency_seconds for link in links])[number],
        )

    def ring(self, workers: Sequence[int]) -> Links:
        """Return the ways of an all-reduce of a byte among workers, by their indices.

        It is 2(m − 1) messages of 1 / m bytes on each link, in step; so is each latency.
        """
        replicas = len(workers)
        turn, next_ = numpy.array(workers), numpy.array([*workers[1:], workers[0]])
        part = numpy.full(replicas, 2 * (replicas - 1) / replicas)
        links = self.links(turn, next_, part)
        latency = 2 * (replicas - 1) * links.latency_seconds
        return links._replace(latency_seconds=latency)

    @staticmethod
    def of_sum(ring: Links, bytes_: float, *, alone: bool) -> Links:
        """Return the ways of an all-reduce of so many bytes, as of one pair.

        Where nothing else passes through its ports there is no hop, and latency is all it takes.

        Args:
            ring: of a byte (:meth:`ring`).
            bytes_: of the sum.
            alone: whether that is so.
        """
        latency = ring.latency_seconds.max(keepdims=True)
        if not alone:
            return ring._replace(seconds=bytes_ * ring.seconds, latency_seconds=latency)
        return NO_LINKS._replace(latency_seconds=bytes_ * ring.seconds.max() + latency)

    @cached_property
    def _hosts(self) -> Indices:
        host_of = self.cluster.host_of
        return numpy.array([host_of[accelerator] for accelerator in self.accelerators])

    @cached_property
    def _network(self) -> Array:
        """The bytes per second of every host's network; none where there is one host."""
        cluster, hosts = self.cluster, self.cluster.host_names
        rates = numpy.ones(len(hosts))
        if len(hosts) > 1:
            for host, accelerator in zip(self._hosts, self.accelerators, strict=True):
                rates[host] = cluster.network(accelerator).bandwidth_bytes_per_second
        return rates
