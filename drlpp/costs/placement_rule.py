"""What a placement takes by the rule: its stages, the ports of their messages, and what rules.

The rule is that of :mod:`drlpp.costs.stage_cost`, with the messages, which take the whole placement
to know. It is a bound: no schedule beats it in steady state. What keeps a pipeline from reaching it
(filling, round trips of messages, replicas that wait for each other) the simulator plays. Memory is
that of :mod:`drlpp.costs.memory`.

A tensor is sent once to every stage that reads it, to the worker that takes the minibatch there,
and its gradient comes back from each. Replicas take turns, so of m and n replicas those meet whose
numbers are the same modulo the greatest common divisor. Gradients of copies of weights go to every
replica of the stage that sums them, and the sums to every replica of the others. Of three copies or
more only what each stage sends and receives at least is counted: which of them sums is up to the
schedule.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy

from drlpp.costs.memory import DEFAULT_MEMORY, MemoryModel
from drlpp.costs.placed_stages import Holders, PlacedStages
from drlpp.costs.stage_cost import Array, Group, StageSeconds
from drlpp.costs.workload import Workload
from drlpp.io.documents import Record
from drlpp.placement.placement import Placement
from drlpp.schedule.pipeline import senders_to_all
from drlpp.specs.cluster import Cluster

Port = tuple[str, int | str]
"""``out of`` or ``into`` an accelerator, by its number, or a host, by its name."""


def ports_between(cluster: Cluster, sender: int, receiver: int) -> tuple[tuple[Port, float], ...]:
    """Return the ports that a message passes, in order, and the bytes per second of each.

    Every accelerator has one for what it sends and one for what it receives. Between hosts messages
    also pass those of both hosts, which all accelerators behind them share.
    """
    bandwidth = cluster.link(sender, receiver).bandwidth_bytes_per_second
    out, into = (("out of", sender), bandwidth), (("into", receiver), bandwidth)
    if not cluster.level(sender, receiver):
        return out, into
    of_host, to_host = (
        ((way, cluster.host_name_of[a]), cluster.network(a).bandwidth_bytes_per_second)
        for way, a in (("out of", sender), ("into", receiver))
    )
    return out, of_host, to_host, into


@dataclass(frozen=True, eq=False)
class PlacedSeconds:
    """What a placement takes on a cluster, in seconds per minibatch.

    Attributes:
        stages: of every stage by itself, but for messages, which are of its accelerators.
        accelerators: of the accelerators of every stage, with all that they hold.
        shared: of the ports that belong to no accelerator, by their names.
    """

    stages: StageSeconds
    accelerators: StageSeconds
    shared: dict[str, float]

    @property
    def slowest(self) -> float:
        """What the slowest part of all takes."""
        return max(max(self.shared.values(), default=0.0), float(self.accelerators.total().max()))


@dataclass(eq=False)
class PlacementRule:
    """The rule for placements of workloads on one cluster."""

    cluster: Cluster
    _groups: dict[tuple[int, ...], Group] = field(default_factory=dict)

    def seconds(self, placed: PlacedStages) -> PlacedSeconds:
        """Return what the stages of a placement take."""
        stages = StageSeconds.of(placed.work, self.groups_of(placed.holders))
        messages, shared = self._messages(placed)
        stages = of_all = replace(stages, messages=messages)
        if placed.placement.is_folded:
            # Messages are of accelerators already.
            of_all = replace(stages, compute=stages.compute + stages.compute[::-1])
        return PlacedSeconds(stages, of_all, shared)

    def groups_of(self, holders: Holders) -> Group:
        """Return the groups of stages, whose messages are counted by ports."""
        # A search comes back to the same few, and looking at all their links takes long.
        for held in holders:
            if held not in self._groups:
                self._groups[held] = Group.of(self.cluster, held, ())
        return Group.together(self._groups[held] for held in holders)

    def _messages(self, placed: PlacedStages) -> tuple[Array, dict[str, float]]:
        """Return how long ports are held for a minibatch.

        That is the busiest port of each stage's accelerators, and those of hosts by their names.
        """
        cluster, holders, bytes_ = self.cluster, placed.holders, placed.exchange.bytes_
        apart = len(set(holders)) == len(holders)
        if len(cluster.host_names) == 1 and apart and not placed.ties:
            bandwidth = cluster.within_host.bandwidth_bytes_per_second
            busiest = numpy.maximum(bytes_.sum(axis=0), bytes_.sum(axis=1))
            return busiest / (placed.replicas * bandwidth), {}
        held: dict[Port, float] = defaultdict(float)

        def send(sender: int, receiver: int, bytes_: float) -> None:
            if sender != receiver:
                for port, bandwidth in ports_between(cluster, sender, receiver):
                    held[port] += bytes_ / bandwidth

        for source, target in zip(*numpy.nonzero(bytes_), strict=True):
            senders, receivers = holders[source], holders[target]
            turns = math.lcm(len(senders), len(receivers))
            for turn in range(turns):
                send(
                    senders[turn % len(senders)],
                    receivers[turn % len(receivers)],
                    float(bytes_[source, target]) / turns,
                )
        for sharing, each in placed.tied_bytes:
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
                        held["into", accelerator] += seconds
                    for number in range(min(map(len, others))):
                        held["out of", holders[stage][number % len(holders[stage])]] += seconds
        busiest = numpy.array([max(held[way, a] for a in h for way in _WAYS) for h in holders])
        shared = {f"{way} {name}": s for (way, name), s in held.items() if isinstance(name, str)}
        return busiest, shared


_WAYS = ("out of", "into")


def _fastest(cluster: Cluster, one: Sequence[int], others: Sequence[Sequence[int]]) -> float:
    """Return the bytes per second of the fastest link between some accelerators and others."""
    links = (cluster.link(a, b) for a in one for other in others for b in other)
    return max(link.bandwidth_bytes_per_second for link in links)


class StagePrediction(Record):
    """Seconds per minibatch that a stage needs, and the memory of each of its accelerators.

    ``all_reduce_left_seconds`` is what of the all-reduce no backward hides.
    ``spare_bytes`` is what the smallest of them has left, negative if the stage does not fit.
    """

    accelerators: tuple[int, ...]
    compute_seconds: float
    all_reduce_seconds: float
    all_reduce_left_seconds: float
    message_seconds: float
    seconds: float
    in_flight: int
    memory_bytes: float
    spare_bytes: float | None


class Prediction(Record):
    """Predicted seconds per minibatch of a placement, its stages, and the part that rules."""

    seconds_per_minibatch: float
    stages: tuple[StagePrediction, ...]
    bottleneck: str

    @property
    def worst_memory(self) -> int:
        """The stage that needs the most memory, or misses it by the most."""
        return max(
            range(len(self.stages)),
            key=lambda index: (
                -(self.stages[index].spare_bytes or 0.0),
                self.stages[index].memory_bytes,
            ),
        )

    @property
    def missing_bytes(self) -> float:
        """What the stage with the least room misses, 0 if all fit."""
        return max(0.0, *(-(stage.spare_bytes or 0.0) for stage in self.stages))


def predict(
    workload: Workload,
    cluster: Cluster,
    placement: Placement,
    memory: MemoryModel = DEFAULT_MEMORY,
) -> Prediction:
    """Predict the steady state of a valid placement.

    Args:
        workload: what has to be computed and sent.
        cluster: the accelerators, their speeds and their links.
        placement: of the workload's operators on them.
        memory: what a stage keeps, and of how many minibatches.
    """
    placed = PlacedStages(workload, placement)
    seconds = PlacementRule(cluster).seconds(placed)
    of_stages, total = seconds.stages, seconds.stages.total()
    in_flight = placed.in_flight(memory.method.in_flight_per_link)
    needed = placed.memory_bytes(memory)
    held = placed.on_accelerators(needed)
    stages = []
    for index, accelerators in enumerate(placed.holders):
        limits = [cluster.memory_bytes[accelerator] for accelerator in accelerators]
        smallest = min((limit for limit in limits if limit is not None), default=None)
        stages.append(
            StagePrediction(
                accelerators=accelerators,
                compute_seconds=float(of_stages.compute[index]),
                all_reduce_seconds=float(of_stages.all_reduce[index]),
                all_reduce_left_seconds=float(of_stages.left[index]),
                message_seconds=float(of_stages.messages[index]),
                seconds=float(total[index]),
                in_flight=int(in_flight[index]),
                memory_bytes=float(needed[index]),
                spare_bytes=None if smallest is None else smallest - float(held[index]),
            )
        )
    slowest, bottleneck = max(_parts(placed, seconds), key=lambda part: part[0])
    return Prediction(seconds_per_minibatch=slowest, stages=tuple(stages), bottleneck=bottleneck)


def _parts(placed: PlacedStages, seconds: PlacedSeconds) -> Iterator[tuple[float, str]]:
    """Yield what each part of a placement takes, and its name."""
    stages, found = len(placed.holders), seconds.accelerators
    for index in range(stages // 2 if placed.placement.is_folded else stages):
        replicas = int(placed.replicas[index])
        where = f"stage {index}" + (f" ({replicas} replicas)" if replicas > 1 else "")
        if placed.placement.is_folded:
            where = f"stages {index} and {stages - 1 - index}"
        left = found.left[index]
        summing = "and all-reduce " if left else ""
        yield float(found.compute[index] + left), f"compute {summing}of {where}"
        yield float(found.messages[index]), f"messages of {where}"
    for name, held in seconds.shared.items():
        yield held, f"messages {name}"
