"""What the steps of a program cost, in the order in which the events look it up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from drlpp.costs.buckets import Bucket, buckets_of
from drlpp.costs.workload import Workload
from drlpp.placement.placement import Placement
from drlpp.schedule.actions import COMPUTATIONS, Cost
from drlpp.simulator.playing.network import Hop, Network, Path, Ring
from drlpp.simulator.playing.program import Program, Sum
from drlpp.simulator.work import PassOverhead, PlacedWork
from drlpp.specs.cluster import Cluster

_SQUARED_NORM_BYTES = 8

_DIGITS = 38
"""Binary digits of the largest cost; 15 more are left for the seconds of a whole run."""


@dataclass(frozen=True)
class Costs:
    """Seconds of a placement's steps on a cluster.

    Attributes:
        seconds: for every worker the seconds of each kind of computing step, at its speed: of
            :data:`drlpp.schedule.actions.COMPUTATIONS`, then of a backward that is summed, then
            those of the second stage, if it holds one, then the other kinds of
            :mod:`drlpp.simulator.playing.program`. One update is of all that it holds, but for what
            other stages hold copies of.
        prediction_seconds: for every worker what predicting weights takes of a forward and of a
            backward.
        ready_seconds: for every worker when its buckets are ready, from the begin of a backward.
        rings: for every stage the way of each bucket's all-reduce.
        tied_rings: of the all-reduce among the replicas of a stage for a tie, by both.
        norm_ring: of the all-reduce of one number among all workers, which holds no ports.
        message_bytes: of a message of each route.
        paths: of each route.
        ports: how many the paths pass through.
    """

    seconds: tuple[tuple[float, ...], ...]
    prediction_seconds: tuple[tuple[float, float], ...]
    ready_seconds: tuple[tuple[float, ...], ...]
    rings: tuple[tuple[Ring, ...], ...]
    tied_rings: dict[tuple[int, int], Ring]
    norm_ring: Ring
    message_bytes: tuple[float, ...]
    paths: tuple[Path, ...]
    ports: int

    @classmethod
    def of(
        cls,
        workload: Workload,
        cluster: Cluster,
        placement: Placement,
        work: PlacedWork,
        overhead: PassOverhead,
        program: Program,
        microbatches: int = 1,
    ) -> Costs:
        """Compute the costs of a program that was compiled for this placement."""
        accelerators = list(
            dict.fromkeys(a for stage in placement.stages for a in stage.accelerators)
        )
        buckets: list[list[Bucket]] = [
            buckets_of(workload, stage.operators) if len(stage.accelerators) > 1 else []
            for stage in placement.stages
        ]
        costs: dict[Cost, list[float]] = {
            "forward": (work.forward_seconds / microbatches + overhead.forward).tolist(),
            "backward": (work.backward_seconds / microbatches + overhead.backward).tolist(),
            "backward_input": (
                (work.backward_seconds - work.backward_weight_seconds) / microbatches
                + overhead.backward_input
            ).tolist(),
            "backward_weight": (
                work.backward_weight_seconds / microbatches + overhead.backward_weight
            ).tolist(),
            "update": work.own_update_seconds.tolist(),
        }
        predictions = list(
            zip(
                overhead.forward_prediction.tolist(),
                overhead.backward_prediction.tolist(),
                strict=True,
            )
        )
        seconds, predicting, ready = [], [], []
        for (stage, *second), accelerator in zip(program.stages_of, accelerators, strict=True):
            speed = cluster.speeds[accelerator]
            cost_of = {name: of_stages[stage] / speed for name, of_stages in costs.items()}
            one_backward = cost_of["backward"]
            cost_of["update"] += sum(costs["update"][other] / speed for other in second)
            seconds.append(
                (
                    *(cost_of[kind.cost] for kind in COMPUTATIONS),
                    one_backward,
                    *(
                        costs[kind.cost][second[0]] / speed if second else 0.0
                        for kind in COMPUTATIONS
                    ),
                    0.0,
                    *(
                        tie.update_seconds / speed
                        for _ in (stage, *second)
                        for tie in work.ties.values()
                    ),
                )
            )
            of_forward, of_backward = predictions[stage]
            predicting.append((of_forward / speed, of_backward / speed))
            ready.append(
                # Sums in another order; no bucket is ready after its backward.
                tuple(
                    min(
                        bucket.ready * work.backward_seconds[stage] / microbatches / speed,
                        one_backward,
                    )
                    for bucket in buckets[stage]
                )
            )
        network = Network(cluster, accelerators)
        ties = list(work.ties.values())
        message_bytes = tuple(
            ties[route.tie].bytes_
            if route.tie >= 0
            else work.message_bytes[route.payload, route.source_stage, route.target_stage]
            / microbatches
            for route in program.routes
        )
        paths = tuple(map(network.path, program.routes, message_bytes))
        numbers = {accelerator: index for index, accelerator in enumerate(accelerators)}
        holders = [[numbers[a] for a in stage.accelerators] for stage in placement.stages]
        ways = [network.ring(held) for held in holders]
        tied = {
            (stage, number): tie.bytes_
            for number, (stages, tie) in enumerate(work.ties.items())
            for stage in stages
        }
        # Where nothing else passes through the ports of a ring, all that counts is how long it
        # takes, and most of the work of playing it is spared.
        uses = Counter(port for path in paths for port, _ in path.hops)
        uses.update(
            port for way, found in zip(ways, buckets, strict=True) if found for port in way.ports
        )
        uses.update(port for stage, _ in tied for port in ways[stage].ports)
        alone = [all(uses[port] == 1 for port in way.ports) for way in ways]
        norm_ring = Ring((), 0.0)
        if any(summed.stage < 0 for summed in program.all_reduces):
            everyone = [numbers[accelerator] for accelerator in sorted(accelerators)]
            norm_ring = network.ring(everyone).carrying(_SQUARED_NORM_BYTES, alone=True)
        found = cls(
            seconds=tuple(seconds),
            prediction_seconds=tuple(predicting),
            ready_seconds=tuple(ready),
            rings=tuple(
                tuple(way.carrying(bucket.bytes_, alone=by_itself) for bucket in found)
                for way, by_itself, found in zip(ways, alone, buckets, strict=True)
            ),
            tied_rings={
                key: ways[key[0]].carrying(bytes_, alone=alone[key[0]])
                for key, bytes_ in tied.items()
            },
            norm_ring=norm_ring,
            message_bytes=message_bytes,
            paths=paths,
            ports=network.ports,
        )
        return found._rounded()

    def rings_of(self, summed: Sum) -> tuple[Ring, ...]:
        """Return the ways of the buckets of an all-reduce."""
        if summed.tie >= 0:
            return (self.tied_rings[summed.stage, summed.tie],)
        if summed.stage >= 0:
            return self.rings[summed.stage]
        return (self.norm_ring,)

    def _rounded(self) -> Costs:
        """Return them as multiples of a power of two, of which sums are exact in any order.

        What would happen at the same moment then does, in every round, whatever was added up before
        it; with sums that are off in the last digit, now one message would come first and now the
        other.
        """
        rings = [*chain(*self.rings), *self.tied_rings.values(), self.norm_ring]
        ways = [*(path.hops for path in self.paths), *(hops for r in rings for hops in r.links)]
        largest = max(
            chain(
                *self.seconds,
                (seconds for hops in ways for _, seconds in hops),
                (path.latency_seconds for path in self.paths),
                (ring.latency_seconds for ring in rings),
            )
        )
        if not 0 < largest < math.inf:
            return self
        tick = 2.0 ** (math.frexp(largest)[1] - _DIGITS)

        def rounded(seconds: float) -> float:
            return round(seconds / tick) * tick

        def each_rounded(seconds: Iterable[float]) -> tuple[float, ...]:
            return tuple(map(rounded, seconds))

        def hops_of(way: Sequence[Hop]) -> tuple[Hop, ...]:
            return tuple([(port, rounded(seconds)) for port, seconds in way])

        def ring_of(ring: Ring) -> Ring:
            return Ring(tuple(map(hops_of, ring.links)), rounded(ring.latency_seconds))

        return replace(
            self,
            seconds=tuple(map(each_rounded, self.seconds)),
            ready_seconds=tuple(map(each_rounded, self.ready_seconds)),
            rings=tuple(tuple(map(ring_of, of_stage)) for of_stage in self.rings),
            tied_rings={key: ring_of(ring) for key, ring in self.tied_rings.items()},
            norm_ring=ring_of(self.norm_ring),
            paths=tuple(
                Path(path.receiver, hops_of(path.hops), rounded(path.latency_seconds))
                for path in self.paths
            ),
        )
