"""What the messages of a placement take of the ports that they pass, in seconds per minibatch.

A tensor is sent once to every stage that reads it, to the worker that takes the minibatch there,
and its gradient comes back from each. Replicas take turns, so of m and n replicas those meet whose
numbers are the same modulo the greatest common divisor. Every accelerator has a port for what it
sends and one for what it receives; between hosts, messages also pass ports that all
accelerators behind them share (:mod:`drlpp.simulator.playing.network`).

All copies of a weight make an update together (:mod:`drlpp.schedule.ties`), of as many minibatches
as make whole updates of each stage that holds one. Their gradients go to every replica of the stage
that sums them, and the sums to every replica of the others. Of three copies or more only what each
stage sends and receives at least is counted: which of them sums is up to the schedule.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from drlpp.costs.stage_cost import Array, StageWork
from drlpp.costs.workload import Workload
from drlpp.schedule.pipeline import senders_to_all
from drlpp.specs.cluster import Cluster


@dataclass(frozen=True)
class TiedSums:
    """The sums of a placement's copies.

    Attributes:
        updates: of copies, for each of a stage's own; ``(stages,)``.
        bytes_: stages that hold copies, and the bytes of a message between two of them, in a
            minibatch.
    """

    updates: Array
    bytes_: tuple[tuple[tuple[int, ...], float], ...]

    @classmethod
    def of(
        cls, workload: Workload, work: StageWork, stage_of: Sequence[int], replicas: Sequence[int]
    ) -> TiedSums:
        """Look at all stages of a placement.

        Args:
            workload: with the weights.
            work: of any stage.
            stage_of: the stage of every operator.
            replicas: of every stage.
        """
        own = [work.minibatches_of_update(count) for count in replicas]
        all_bytes, rates, found = numpy.zeros(len(own)), numpy.zeros(len(own)), []
        for stages, ties in workload.ties_between(stage_of).items():
            together = math.lcm(*(own[stage] for stage in stages))
            bytes_ = sum(tie.bytes_ for tie in ties)
            found.append((stages, bytes_ / together))
            for stage in stages:
                all_bytes[stage] += bytes_
                rates[stage] += bytes_ * own[stage] / together
        updates = numpy.divide(rates, all_bytes, out=numpy.ones(len(own)), where=all_bytes > 0)
        return cls(updates, tuple(found))


@dataclass(frozen=True)
class MessageLoad:
    """Seconds per minibatch that ports are held.

    Attributes:
        stages: of the busiest port of each stage's accelerators; ``(stages,)``.
        shared: of the ports that belong to no accelerator, by their names.
    """

    stages: Array
    shared: dict[str, float]

    @classmethod
    def of(
        cls,
        cluster: Cluster,
        holders: Sequence[tuple[int, ...]],
        bytes_: Array,
        tied: Sequence[tuple[tuple[int, ...], float]] = (),
    ) -> MessageLoad:
        """Add up the messages of a minibatch.

        Args:
            cluster: with the links.
            holders: the accelerators of every stage.
            bytes_: from which stage to which; ``(stages, stages)``.
            tied: of copies of weights (:class:`TiedSums`).
        """
        apart = len(set(holders)) == len(holders)
        if len(cluster.host_names) == 1 and apart and not tied:
            replicas = numpy.array([len(held) for held in holders])
            bandwidth = cluster.within_host.bandwidth_bytes_per_second
            busiest = numpy.maximum(bytes_.sum(axis=0), bytes_.sum(axis=1))
            return cls(busiest / (replicas * bandwidth), {})
        out: dict[int, float] = defaultdict(float)
        into: dict[int, float] = defaultdict(float)
        shared: dict[str, float] = defaultdict(float)

        def send(sender: int, receiver: int, bytes_: float) -> None:
            if sender == receiver:
                return
            seconds = bytes_ / cluster.link(sender, receiver).bandwidth_bytes_per_second
            out[sender] += seconds
            into[receiver] += seconds
            _pass_between(cluster, sender, receiver, bytes_, shared)

        for source, target in zip(*numpy.nonzero(bytes_), strict=True):
            senders, receivers = holders[source], holders[target]
            turns = math.lcm(len(senders), len(receivers))
            for turn in range(turns):
                send(
                    senders[turn % len(senders)],
                    receivers[turn % len(receivers)],
                    float(bytes_[source, target]) / turns,
                )
        for sharing, each in tied:
            if len(sharing) == 2:
                # Whichever of them is the root: every replica gets the gradients, or the sum.
                for source, target in (sharing, sharing[::-1]):
                    for sender, receiver in senders_to_all(holders[source], holders[target]):
                        send(sender, receiver, each)
            elif apart:
                for stage in sharing:
                    others = [holders[other] for other in sharing if other != stage]
                    seconds = each / _fastest(cluster, holders[stage], others)
                    for accelerator in holders[stage]:
                        into[accelerator] += seconds
                    for number in range(min(map(len, others))):
                        out[holders[stage][number % len(holders[stage])]] += seconds
        stages = [max(max(out[a], into[a]) for a in held) for held in holders]
        return cls(numpy.array(stages), dict(shared))


def _fastest(cluster: Cluster, one: Sequence[int], others: Sequence[Sequence[int]]) -> float:
    """Return the bytes per second of the fastest link between some accelerators and others."""
    links = (cluster.link(a, b) for a in one for other in others for b in other)
    return max(link.bandwidth_bytes_per_second for link in links)


def _pass_between(
    cluster: Cluster, sender: int, receiver: int, bytes_: float, shared: dict[str, float]
) -> None:
    """Hold the ports of hosts between two accelerators for a message."""
    if not cluster.level(sender, receiver):
        return
    for name, accelerator in (("out of", sender), ("into", receiver)):
        network = cluster.network(accelerator).bandwidth_bytes_per_second
        shared[f"{name} {cluster.host_name_of[accelerator]}"] += bytes_ / network
