"""What the steps of a program cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import NamedTuple

import numpy

from drlpp.costs.buckets import Bucket, buckets_of
from drlpp.costs.placed_stages import PlacedStages
from drlpp.costs.stage_cost import Array, Indices
from drlpp.schedule.actions import COMPUTATIONS, Cost
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.weight_policies import Lookahead, PartCounts
from drlpp.simulator.playing.network import NO_LINKS, Links, Network
from drlpp.simulator.playing.program import Program, Routes, Sum, begins_of
from drlpp.specs.cluster import Cluster

_SQUARED_NORM_BYTES = 8

_DIGITS = 38
"""Binary digits of the largest cost; 15 more are left for the seconds of a whole run."""


class Costs(NamedTuple):
    """Seconds of a placement's steps on a cluster, laid out as the event loop reads them.

    Attributes:
        seconds: for every worker the seconds of each of ``kinds`` kinds of computing step, at its
            speed: of :data:`drlpp.schedule.actions.COMPUTATIONS`, then of a backward that is
            summed, then those of the second stage, if it holds one, then the other kinds of
            :mod:`drlpp.simulator.playing.program`. One update is of all that it holds, but for what
            other stages hold copies of.
        ready_begins, ready: of every worker the first of its buckets, and when they are ready, from
            the begin of a backward.
        hop_begins, hop_ports, hop_seconds, latency: of every route.
        bucket_begins: the first bucket of every kind of sum.
        ring_begins, ring_firsts, ring_ports, ring_seconds, ring_latency: of every bucket; the first
            hops of links are marked.
        ports: how many all of these pass through.
    """

    seconds: Array
    kinds: int
    ready_begins: Indices
    ready: Array
    hop_begins: Indices
    hop_ports: Indices
    hop_seconds: Array
    latency: Array
    bucket_begins: Indices
    ring_begins: Indices
    ring_firsts: Indices
    ring_ports: Indices
    ring_seconds: Array
    ring_latency: Array
    ports: int

    def rounded(self) -> Costs:
        """Return them as multiples of a power of two, of which sums are exact in any order.

        What would happen at the same moment then does, in every round, whatever was added up before
        it; with sums that are off in the last digit, now one message would come first and now the
        other.
        """
        taken = ("seconds", "hop_seconds", "latency", "ring_seconds", "ring_latency")
        largest = max(float(getattr(self, name).max(initial=0.0)) for name in taken)
        if not 0 < largest < math.inf:
            return self
        tick = 2.0 ** (math.frexp(largest)[1] - _DIGITS)
        names = (*taken, "ready")
        return self._replace(
            **{name: numpy.rint(getattr(self, name) / tick) * tick for name in names}
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

    def bytes_of(self, routes: Routes) -> Array:
        """Return the bytes of a message of each route."""
        bytes_ = self.placed.exchange.bytes_[routes.source_stages, routes.target_stages]
        bytes_ = bytes_ / self.method.microbatches
        tied = routes.ties >= 0
        bytes_[tied] = numpy.array(self.tied_bytes)[routes.ties[tied]]
        return bytes_

    def of(self, program: Program) -> Costs:
        """Compute the costs of a program that was compiled for this placement."""
        placed, workload, parts = self.placed, self.placed.workload, self.method.microbatches
        accelerators = list(dict.fromkeys(chain(*placed.holders)))
        speeds = numpy.array([self.cluster.speeds[accelerator] for accelerator in accelerators])
        stages = numpy.array([stages[0] for stages in program.stages_of])
        backward = placed.total(workload.backward_seconds) * self._factors
        # Sums in another order; no bucket is ready after its backward.
        whole_backward = self._stage_seconds["backward"][stages] / speeds
        parts_of = [numpy.array([bucket.ready for bucket in found]) for found in self._buckets]
        ready = [
            numpy.minimum(parts_of[stage] * backward[stage] / parts / speed, longest)
            for stage, speed, longest in zip(stages, speeds, whole_backward, strict=True)
        ]
        network = Network(self.cluster, accelerators)
        routes = program.routes
        paths = network.links(routes.senders, routes.receivers, self.bytes_of(routes))
        seconds = self._worker_seconds(program.stages_of, speeds)
        rings = self._rings(program.sums, network, accelerators, paths)
        buckets = [*chain(*rings)]
        links, ports, held, latency = map(numpy.concatenate, zip(NO_LINKS, *buckets, strict=True))
        return Costs(
            seconds=seconds.ravel(),
            kinds=seconds.shape[1],
            ready_begins=begins_of(list(map(len, ready))),
            ready=numpy.concatenate(ready),
            hop_begins=begins_of(numpy.bincount(paths.of, minlength=len(routes))),
            hop_ports=paths.ports,
            hop_seconds=paths.seconds,
            latency=paths.latency_seconds,
            bucket_begins=begins_of(list(map(len, rings))),
            ring_begins=begins_of([len(bucket.of) for bucket in buckets]),
            ring_firsts=(numpy.diff(links, prepend=-1) != 0).astype(int),
            ring_ports=ports,
            ring_seconds=held,
            ring_latency=latency,
            ports=network.ports,
        ).rounded()

    @cached_property
    def _buckets(self) -> list[list[Bucket]]:
        """Those of every stage, none where it is not replicated."""
        workload = self.placed.workload
        return [
            buckets_of(workload, stage.operators) if len(stage.accelerators) > 1 else []
            for stage in self.placed.placement.stages
        ]

    def _worker_seconds(self, stages_of: Sequence[tuple[int, ...]], speeds: Array) -> Array:
        """Return the seconds of each kind of step of every worker."""
        costs, folded = self._stage_seconds, len(stages_of[0]) > 1
        held = numpy.array(stages_of).T
        first = [costs[kind.cost][held[0]] / speeds for kind in COMPUTATIONS]
        second = [
            costs[kind.cost][held[1]] / speeds if folded else 0 * speeds for kind in COMPUTATIONS
        ]
        first[-1] += second[-1]
        tied = [one / speeds for _ in held for one in self._tied_update_seconds]
        backward = costs["backward"][held[0]] / speeds
        return numpy.stack([*first, backward, *second, 0 * speeds, *tied], axis=1)

    def _rings(
        self, sums: Sequence[Sum], network: Network, accelerators: Sequence[int], paths: Links
    ) -> list[list[Links]]:
        """Return the ways of the buckets of each kind of sum.

        Where nothing else passes through the ports of a ring, all that counts is how long it
        takes, and most of the work of playing it is spared.
        """
        numbers = {accelerator: index for index, accelerator in enumerate(accelerators)}
        holders = self.placed.holders
        ways = {
            one.stage: network.ring([numbers[a] for a in holders[one.stage]])
            for one in sums
            if one.stage >= 0
        }
        uses = numpy.bincount(paths.ports, minlength=network.ports)
        for one in sums:
            if one.stage >= 0 and (one.tie >= 0 or self._buckets[one.stage]):
                uses += numpy.bincount(ways[one.stage].ports, minlength=network.ports)

        def rings_of(one: Sum) -> list[Links]:
            if one.stage < 0:
                everyone = network.ring([numbers[a] for a in sorted(accelerators)])
                return [network.of_sum(everyone, _SQUARED_NORM_BYTES, alone=True)]
            way, buckets = ways[one.stage], self._buckets[one.stage]
            bytes_ = (
                [bucket.bytes_ for bucket in buckets] if one.tie < 0 else [self.tied_bytes[one.tie]]
            )
            alone = bool((uses[way.ports] == 1).all())
            return [network.of_sum(way, each, alone=alone) for each in bytes_]

        return list(map(rings_of, sums))


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
