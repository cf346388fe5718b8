"""What the steps of a program cost, in the order in which the events look it up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from drlpp.costs.workload import Workload
from drlpp.placement.placement import Placement
from drlpp.schedule.actions import COMPUTATIONS, Cost
from drlpp.simulator.playing.network import Network, Path
from drlpp.simulator.playing.program import Program
from drlpp.simulator.work import Bucket, PassOverhead, PlacedWork, buckets_of
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
        ring_seconds: for every stage the seconds of each bucket's all-reduce.
        tied_ring_seconds: of the all-reduce among the replicas of a stage for a tie, by both.
        squared_norm_seconds: of the all-reduce of one number among all workers.
        message_bytes: of a message of each route.
        paths: of each route.
        ports: how many the paths pass through.
        core_groups: by number the workers that share cores, and how many.
    """

    seconds: tuple[tuple[float, ...], ...]
    prediction_seconds: tuple[tuple[float, float], ...]
    ready_seconds: tuple[tuple[float, ...], ...]
    ring_seconds: tuple[tuple[float, ...], ...]
    tied_ring_seconds: dict[tuple[int, int], float]
    squared_norm_seconds: float
    message_bytes: tuple[float, ...]
    paths: tuple[Path, ...]
    ports: int
    core_groups: tuple[tuple[frozenset[int], int], ...]

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
                    min(bucket.ready_seconds / microbatches / speed, one_backward)
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
        shares_norm = any(summed.stage < 0 for summed in program.all_reduces)
        found = cls(
            seconds=tuple(seconds),
            prediction_seconds=tuple(predicting),
            ready_seconds=tuple(ready),
            ring_seconds=tuple(
                _ring_seconds(cluster, stage.accelerators, [bucket.bytes_ for bucket in found])
                for stage, found in zip(placement.stages, buckets, strict=True)
            ),
            tied_ring_seconds={
                (stage, number): _ring_seconds(
                    cluster, placement.stages[stage].accelerators, [tie.bytes_]
                )[0]
                for number, (stages, tie) in enumerate(work.ties.items())
                for stage in stages
            },
            squared_norm_seconds=_ring_seconds(
                cluster, sorted(accelerators), [_SQUARED_NORM_BYTES]
            )[0]
            if shares_norm
            else 0.0,
            message_bytes=message_bytes,
            paths=paths,
            ports=network.ports,
            core_groups=tuple(_core_groups(cluster, accelerators)),
        )
        return found._rounded()

    def _rounded(self) -> Costs:
        """Return them as multiples of a power of two, of which sums are exact in any order.

        What would happen at the same moment then does, in every round, whatever was added up before
        it; with sums that are off in the last digit, now one message would come first and now the
        other.
        """
        hops = [seconds for path in self.paths for _, seconds in path.hops]
        largest = max(
            chain(
                *self.seconds,
                *self.ring_seconds,
                self.tied_ring_seconds.values(),
                hops,
                (path.latency_seconds for path in self.paths),
                (self.squared_norm_seconds,),
            )
        )
        if not 0 < largest < math.inf:
            return self
        tick = 2.0 ** (math.frexp(largest)[1] - _DIGITS)

        def rounded(values: Iterable[float]) -> tuple[float, ...]:
            return tuple([round(value / tick) * tick for value in values])

        paths = []
        for path in self.paths:
            ports, held = zip(*path.hops, strict=True)
            *seconds, latency = rounded((*held, path.latency_seconds))
            hops = tuple(zip(ports, seconds, strict=True))
            paths.append(Path(path.receiver, hops, latency))
        return replace(
            self,
            seconds=tuple(map(rounded, self.seconds)),
            ready_seconds=tuple(map(rounded, self.ready_seconds)),
            ring_seconds=tuple(map(rounded, self.ring_seconds)),
            tied_ring_seconds=dict(
                zip(self.tied_ring_seconds, rounded(self.tied_ring_seconds.values()), strict=True)
            ),
            squared_norm_seconds=round(self.squared_norm_seconds / tick) * tick,
            paths=tuple(paths),
        )


def _ring_seconds(
    cluster: Cluster, ring: Sequence[int], sizes: Sequence[float]
) -> tuple[float, ...]:
    """Return the seconds of ring all-reduces.

    Each consists of 2(m − 1) messages of bytes / m over the slowest link.
    """
    if not sizes:
        return ()
    replicas = len(ring)
    links = cluster.ring(ring)
    latency = max((link.latency_seconds for link in links), default=0.0)
    slowest = min((link.bandwidth_bytes_per_second for link in links), default=1.0)
    return tuple(2 * (replicas - 1) * (latency + size / replicas / slowest) for size in sizes)


def _core_groups(cluster: Cluster, accelerators: Sequence[int]) -> list[tuple[frozenset[int], int]]:
    """Return, for every host with more workers than cores, these workers and its cores.

    Such workers may slow each other down.
    """
    groups = [
        (frozenset(w for w, a in enumerate(accelerators) if a in host.accelerators), host.cores)
        for host in cluster.crowded
    ]
    return [(workers, cores) for workers, cores in groups if len(workers) > cores]
