"""What the steps of a program cost, in the order in which the events look it up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain

import numpy

from drlpp.costs.buckets import Bucket, buckets_of
from drlpp.costs.placed_stages import PlacedStages
from drlpp.costs.stage_cost import Array
from drlpp.schedule.actions import COMPUTATIONS, Cost, Payload
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.weight_policies import Lookahead, PartCounts
from drlpp.simulator.playing.network import Hop, Network, Path, Ring
from drlpp.simulator.playing.program import Program, Route, Sum
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
        paths: of each route.
        ports: how many the paths pass through.
    """

    seconds: tuple[tuple[float, ...], ...]
    prediction_seconds: tuple[tuple[float, float], ...]
    ready_seconds: tuple[tuple[float, ...], ...]
    rings: tuple[tuple[Ring, ...], ...]
    tied_rings: dict[tuple[int, int], Ring]
    norm_ring: Ring
    paths: tuple[Path, ...]
    ports: int

    def rings_of(self, summed: Sum) -> tuple[Ring, ...]:
        """Return the ways of the buckets of an all-reduce."""
        if summed.tie >= 0:
            return (self.tied_rings[summed.stage, summed.tie],)
        if summed.stage >= 0:
            return self.rings[summed.stage]
        return (self.norm_ring,)

    def rounded(self) -> Costs:
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


@dataclass(frozen=True, eq=False)
class Pricing:
    """What the costs of a program's steps follow from; arrays have a value for every stage.

    Attributes:
        placed: the stages of a placement.
        cluster: that they stand on.
        method: that runs them.
    """

    placed: PlacedStages
    cluster: Cluster
    method: Method

    @cached_property
    def _factors(self) -> Array:
        """What all that stages compute takes longer in a run, but for copies of weights."""
        workload = self.placed.workload
        return numpy.array([one.seconds for one in workload.run_factors(self.placed.placement)])

    @cached_property
    def tied_bytes(self) -> list[float]:
        """The bytes of each copy."""
        return [sum(tie.bytes_ for tie in members) for members in self.placed.ties.values()]

    @cached_property
    def message_bytes(self) -> dict[tuple[Payload, int, int], float]:
        """Of the messages of a minibatch: by payload, source and target stage."""
        exchange = self.placed.exchange
        return {
            ("activation" if source < target else "gradient", source, target): float(
                exchange.bytes_[source, target]
            )
            for source, target in numpy.argwhere(exchange.talks).tolist()
        }

    @cached_property
    def _tied_update_seconds(self) -> list[float]:
        """What an update of a copy takes."""
        workload = self.placed.workload
        return [
            sum(map(workload.tied_update_seconds, members)) for members in self.placed.ties.values()
        ]

    @cached_property
    def _moving(self) -> tuple[Array, Array]:
        """What predicting or correcting weights takes of a forward, and of a backward.

        A stage moves its weights where it looks ahead or back in steady state
        (:func:`drlpp.schedule.analysis.weight_versions.weight_uses`), which not all microbatches
        do: of n in an update, min(n, (d − 1)·m) meet an update between their passes, with d in
        flight on each of m replicas.
        """
        placed, method, pipeline = self.placed, self.method, self.placed.pipeline
        forward, backward = _moving_parts(pipeline.numbered, method)
        tied_forward, tied_backward = numpy.zeros((2, len(pipeline.stages)))
        looks = method.lookahead or Lookahead()
        ties = method.ties(pipeline) if pipeline.ties else ()
        for tie, bytes_ in zip(ties, self.tied_bytes, strict=True):
            parts, apart = tie.together * method.microbatches, method.parts_in_between(pipeline)
            late = PartCounts(0, 0, still_to_come=1)
            for stage in tie.others:
                # As far ahead as at the root, whose update is still to come at the backward.
                coming = min(1.0, (apart[tie.root] - apart[stage]) / parts)
                looks_back = coming * (looks.backward(late) != 0)
                tied_forward[stage] += bytes_ * (forward[tie.root] - forward[stage])
                tied_backward[stage] += bytes_ * max(looks_back - backward[stage], 0.0)
        own, seconds_per_byte = (
            placed.work.parameter_bytes,
            placed.workload.prediction_seconds_per_byte,
        )
        return (
            seconds_per_byte * (own * forward + tied_forward),
            seconds_per_byte * (own * backward + tied_backward),
        )

    @cached_property
    def _stage_seconds(self) -> dict[Cost, Array]:
        """What a pass and an update of every stage take at speed 1.

        Passes that predict weights, or correct them, have that in them. A half of a backward takes
        besides its operators what a whole one does, that for weights alone collects gradients, and
        the two share what splitting takes. A stage collects the gradients of several passes for its
        update if it is replicated, accumulates or has microbatches.
        """
        placed, method, factors = self.placed, self.method, self._factors
        workload, total, parts = placed.workload, placed.total, method.microbatches
        collects = numpy.array([len(held) > 1 for held in placed.holders])
        collects |= parts > 1 or method.accumulate > 1
        collecting = placed.work.parameter_bytes * workload.sharing_seconds_per_byte * collects
        moving_forward, moving_backward = self._moving
        weighted = total((workload.parameter_bytes > 0).astype(numpy.float64))
        half = workload.backward_overhead_seconds + workload.split_seconds * weighted / 2
        backward = total(workload.backward_seconds) * factors
        of_weights = total(workload.backward_weight_seconds) * factors
        update = placed.work.update_seconds.copy()
        for stages, seconds in zip(self.placed.ties, self._tied_update_seconds, strict=True):
            update[list(stages)] -= seconds

        def passes(seconds: Array, besides: Array) -> Array:
            return seconds / parts + besides * factors

        return {
            "forward": passes(
                total(workload.forward_seconds) * factors,
                workload.forward_overhead_seconds + moving_forward,
            ),
            "backward": passes(
                backward, workload.backward_overhead_seconds + moving_backward + collecting
            ),
            "backward_input": passes(backward - of_weights, half),
            "backward_weight": passes(of_weights, half + collecting),
            "update": numpy.maximum(update, 0.0) * factors,
        }

    def bytes_of(self, route: Route) -> float:
        """Return the bytes of a message."""
        if route.tie >= 0:
            return self.tied_bytes[route.tie]
        of_minibatch = self.message_bytes[route.payload, route.source_stage, route.target_stage]
        return of_minibatch / self.method.microbatches

    def of(self, program: Program) -> Costs:
        """Compute the costs of a program that was compiled for this placement."""
        placed, workload, parts = self.placed, self.placed.workload, self.method.microbatches
        holders, speeds = placed.holders, self.cluster.speeds
        accelerators = list(dict.fromkeys(chain(*holders)))
        buckets: list[list[Bucket]] = [
            buckets_of(workload, stage.operators) if len(stage.accelerators) > 1 else []
            for stage in placed.placement.stages
        ]
        costs = {name: of_stages.tolist() for name, of_stages in self._stage_seconds.items()}
        backward = (placed.total(workload.backward_seconds) * self._factors).tolist()
        predictions = [(of_stages * self._factors).tolist() for of_stages in self._moving]
        seconds, predicting, ready = [], [], []
        for (stage, *second), accelerator in zip(program.stages_of, accelerators, strict=True):
            speed = speeds[accelerator]
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
                    *(one / speed for _ in (stage, *second) for one in self._tied_update_seconds),
                )
            )
            of_forward, of_backward = predictions
            predicting.append((of_forward[stage] / speed, of_backward[stage] / speed))
            # Sums in another order; no bucket is ready after its backward.
            ready.append(
                tuple(
                    min(bucket.ready * backward[stage] / parts / speed, one_backward)
                    for bucket in buckets[stage]
                )
            )
        network = Network(self.cluster, accelerators)
        paths = tuple(network.path(route, self.bytes_of(route)) for route in program.routes)
        numbers = {accelerator: index for index, accelerator in enumerate(accelerators)}
        ways = [network.ring([numbers[a] for a in held]) for held in holders]
        tied = {
            (stage, number): bytes_
            for number, (stages, bytes_) in enumerate(
                zip(self.placed.ties, self.tied_bytes, strict=True)
            )
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
        if any(summed.stage < 0 for summed in program.sums):
            everyone = [numbers[accelerator] for accelerator in sorted(accelerators)]
            norm_ring = network.ring(everyone).carrying(_SQUARED_NORM_BYTES, alone=True)
        return Costs(
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
            paths=paths,
            ports=network.ports,
        ).rounded()


@lru_cache(maxsize=1024)
def _moving_parts(shape: Pipeline, method: Method) -> tuple[Array, Array]:
    """Return the parts of the stages' forwards, and backwards, that look ahead or back.

    That is in steady state. Whether they do, not how far, decides where weights are moved.
    """
    looks, apart = method.lookahead or Lookahead(), method.parts_in_between(shape)
    found = numpy.zeros((2, len(apart)))
    for stage, workers in enumerate(shape.stages):
        parts = method.parts_of_update(len(workers))
        late = min(1.0, apart[stage] / parts)
        until_input = shape.rank(stage) // (2 * parts)
        at_once, later = (PartCounts(0, behind, until_input=until_input) for behind in (0, 1))
        found[:, stage] = [
            late * (count(later) != 0) + (1 - late) * (count(at_once) != 0)
            for count in (looks.forward, looks.backward)
        ]
    return found[0], found[1]
