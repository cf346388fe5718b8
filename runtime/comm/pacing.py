"""Emulated links: what workers of one machine send each other takes as long as on slower links.

A message says when it can have arrived, and who waits for it waits until then::

    sender      ├─ port busy: bytes / bandwidth ─┤
    receiver                                latency ├─ there, unless its port still receives

A worker has a port for each kind of link (within a host, between hosts), which sends one message
after the other, and receives one after the other. A sum over replicas begins when the last of them
has begun, and takes as long as a ring through their slowest link. Norms, which are a number, and
what a deployment sends take no longer than they do.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist

from drlpp.specs.cluster import Link


class Pace:
    """When the ports of a worker are free again, in seconds of ``time.perf_counter``."""

    def __init__(self, links: Mapping[int, Link]) -> None:
        self._links = links
        self._sending: defaultdict[Link, float] = defaultdict(float)
        self._receiving: defaultdict[Link, float] = defaultdict(float)

    def send(self, bytes_: int, receiver: int) -> tuple[float, float]:
        """Return when so many bytes have left the port, and when they can have arrived."""
        link = self._links[receiver]
        begin = max(time.perf_counter(), self._sending[link])
        left = self._sending[link] = begin + bytes_ / link.bandwidth_bytes_per_second
        return left, left + link.latency_seconds

    def receive(self, bytes_: int, sender: int, arrival: float) -> float:
        """Return when so many bytes have arrived that can have done so at ``arrival``."""
        link = self._links[sender]
        passing = self._receiving[link] + bytes_ / link.bandwidth_bytes_per_second
        self._receiving[link] = max(arrival, passing)
        return self._receiving[link]

    def sum(self, bytes_: int, replicas: Sequence[int], begun: float, rings: int = 2) -> float:
        """Return when the sum of so many bytes over this worker and others has arrived.

        Args:
            bytes_: that are summed.
            replicas: the other workers.
            begun: when the last of all had begun.
            rings: how often all goes around; once where each has, or gets, a part of the bytes.
        """
        links = [self._links[replica] for replica in replicas]
        slowest = min(links, key=lambda link: link.bandwidth_bytes_per_second)
        steps, number = rings * len(replicas), len(replicas) + 1
        seconds = steps * slowest.seconds(bytes_ / number)
        end = max(begun, self._sending[slowest], self._receiving[slowest]) + seconds
        self._sending[slowest] = self._receiving[slowest] = end
        return end


def wait_until(moment: float) -> None:
    """Sleep until a moment of ``time.perf_counter``."""
    if (left := moment - time.perf_counter()) > 0:
        time.sleep(left)


class PacedSum(dist.Work):
    """A sum over replicas that takes its time; ``sum_`` is None for what is over before that."""

    def __init__(
        self,
        sum_: dist.Work | None,
        bytes_: int,
        group: dist.ProcessGroup,
        others: Sequence[int],
        pace: Pace,
        rings: int = 2,
    ) -> None:
        super().__init__()
        self._sum, self._bytes, self._others, self._pace = sum_, bytes_, others, pace
        self._rings = rings
        self._begun = torch.tensor([time.perf_counter()], dtype=torch.float64)
        options = dist.AllreduceOptions()
        options.reduceOp = cast(dist.ReduceOp, dist.ReduceOp.MAX)
        self._latest = group.allreduce([self._begun], options)

    def wait(self, *limit: timedelta) -> bool:
        """Wait until the sum has taken the tensor's place."""
        done = (self._sum is None or self._sum.wait(*limit)) and self._latest.wait(*limit)
        begun = float(self._begun)
        wait_until(self._pace.sum(self._bytes, self._others, begun, self._rings))
        return done
