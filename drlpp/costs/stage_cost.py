"""What a stage costs on some accelerators, in seconds per minibatch: the rule planners minimise.

In steady state nothing flushes an asynchronous pipeline, so it runs at the rate of its slowest part
(pipedream §3.1). For a stage with m replicas, the slowest of relative speed v, T the seconds of its
forward and backward, U those of the optimizer, S those of collecting gradients for other replicas,
W its parameter bytes, B the bandwidth and λ the latency of the slowest link that it uses:

* **compute**: (T + U) / (m v), and (T + S + U) / (m v) for m > 1. The replicas take minibatches
  round-robin, so each sees one in m, and the slowest sets the pace. U counts once a round of m
  minibatches on every replica, as T and S do.
* **all-reduce**: one ring all-reduce a round, in which a replica sends 2(m − 1) messages of W/m
  bytes, R = 2(m − 1) (W / (m B) + λ). It overlaps with the backward of the round's last minibatch,
  which takes L / v, and nothing else: the update waits for it. What is left, max(0, R − L / v) / m,
  comes on top of the compute.

  With M microbatches in a minibatch, by which the replicas take turns, and gradients of A
  minibatches accumulated, an update is of k = ⌈m / (A M)⌉ A minibatches instead of m (of A where
  all stages update together), so U and the all-reduce count m / k times a round. T has M times what
  a pass takes besides its operators, and M times S whatever m is; L is of a microbatch.
* **messages**: what an accelerator receives and what it sends, each in its own direction:
  max(incoming, outgoing) / (m B). Latency delays a message, and holds up no other. A tensor is
  counted once here; how often it is sent takes the whole placement to know
  (:mod:`drlpp.costs.placement_rule`).
* **copies**: where others hold copies of some of the stage's weights, C bytes, the all-reduce
  has W − C of them. For every update of C one of these comes after it, in which nobody computes.
  The stage's gradients of them go out, and others' or the sum come in: C / (m B) more each way. All
  copies make such an update together, of as many minibatches as make whole updates of each of their
  stages. That too takes the whole placement to know
  (:class:`drlpp.costs.placed_stages.PlacedStages`); by itself a stage counts one for each of its
  own.

What counts is the slower of compute, with what is left of the all-reduce, and messages, since these
overlap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

from drlpp.schedule.method import Method
from drlpp.specs.cluster import Cluster, Link

Array = NDArray[numpy.float64]
Indices = NDArray[numpy.int_]


def sums_of(stage_of: Indices, values: Array, stages: int) -> Array:
    """Add up values by the stage that each belongs to."""
    found: Array = numpy.bincount(stage_of, values, stages).astype(numpy.float64, copy=False)
    return found


@dataclass(frozen=True)
class StageWork:
    """What a stage does for one minibatch, as arrays without dimensions; or what many stages do.

    A tensor that crosses the stage's border is counted once, however many stages are at its other
    end: it would take the whole placement to know them, and a planner looks at stages one by one.

    Attributes:
        seconds: forward and backward, with what belongs to them, at speed 1.
        one_backward_seconds: of the last backward before an update, behind which an all-reduce
            hides; of a microbatch, if there are any.
        update_seconds: of the optimizer, for one update of all of the weights.
        sharing_seconds: of collecting the gradients of a minibatch, if the stage is replicated.
        parameter_bytes: of the weights.
        kept_bytes: from the forward to the backward pass of a minibatch.
        working_bytes: beyond them, while a minibatch is computed
            (:mod:`drlpp.costs.memory`); 0 where a planner's formula leaves it out.
        incoming_bytes: activations of earlier stages, gradients of later ones.
        outgoing_bytes: activations for later stages, gradients for earlier ones.
        tied_bytes: of the weights that other stages hold copies of: for every update of these the
            stage sends that many, and receives as many.
        tied_update_seconds: of their updates, in ``update_seconds``.
        tied_updates: how many there are for each of the stage's own: 1, or less where other stages
            have more replicas, which it takes the whole placement to know
            (:class:`drlpp.costs.placed_stages.PlacedStages`).
        method: that runs it.
    """

    seconds: Array
    one_backward_seconds: Array
    update_seconds: Array
    sharing_seconds: Array
    parameter_bytes: Array
    kept_bytes: Array
    incoming_bytes: Array
    outgoing_bytes: Array
    working_bytes: Array
    tied_bytes: Array
    tied_update_seconds: Array
    tied_updates: Array
    method: Method

    def chosen(self, stages: Sequence[int]) -> StageWork:
        """Return the work of some of many stages."""
        names = [of.name for of in fields(self) if of.name != "method"]
        return replace(self, **{name: getattr(self, name)[stages] for name in names})

    def updates_in_a_round(self, replicas: Any) -> Any:
        """Return how many updates ``replicas`` (a number, or an array) make of as many minibatches.

        That is one if every replica takes a minibatch, more if they take microbatches, and less if
        gradients are accumulated.
        """
        return replicas / self.method.minibatches_of_update(replicas)


class Group(NamedTuple):
    """The accelerators of a stage, as far as costs go; or of many stages, as arrays.

    Attributes:
        replicas: m.
        speed: of the slowest.
        ring_bandwidth, ring_latency: of the slowest link of the ring of replicas.
        bandwidth: of the slowest link to the accelerators of other stages.
    """

    replicas: int | Indices
    speed: float | Array
    ring_bandwidth: float | Array
    ring_latency: float | Array
    bandwidth: float | Array

    @classmethod
    def of(cls, cluster: Cluster, accelerators: Sequence[int], others: Sequence[int]) -> Group:
        """Return what costs depend on for a stage on ``accelerators`` that talks to ``others``."""

        def slowest(links: Collection[Link]) -> Link:
            return reduce(Link.slower, links) if links else cluster.within_host

        ring = slowest(set(cluster.ring(accelerators)))
        return cls(
            replicas=len(accelerators),
            speed=min(cluster.speeds[accelerator] for accelerator in accelerators),
            ring_bandwidth=ring.bandwidth_bytes_per_second,
            ring_latency=ring.latency_seconds,
            bandwidth=slowest(
                cluster.links_between(accelerators, others)
            ).bandwidth_bytes_per_second,
        )

    @classmethod
    def together(cls, groups: Iterable[Group]) -> Group:
        """Put the groups of several stages next to each other; ``(stages,)``."""
        return cls(*map(numpy.array, zip(*groups, strict=True)))

    def one(self, stage: int) -> Group:
        """Return that of one of several stages."""
        return Group(*(numpy.asarray(column)[stage] for column in self))


@dataclass(frozen=True)
class StageSeconds:
    """The parts of a stage's cost, in seconds per minibatch, of one stage or of many.

    Attributes:
        compute: of an accelerator.
        all_reduce: of its gradients' sums.
        left: what of them no backward hides.
        messages: of the busier direction.
    """

    compute: Array
    all_reduce: Array
    left: Array
    messages: Array

    @classmethod
    def of(cls, work: StageWork, group: Group) -> StageSeconds:
        """Return the parts of the cost by the formulas above."""
        m = group.replicas
        updates = work.updates_in_a_round(m)
        compute = cls.busy(work, m) / group.speed
        ring = ring_seconds(work.parameter_bytes - work.tied_bytes, group)
        left = numpy.maximum(0.0, ring - work.one_backward_seconds / group.speed)
        tied_updates = updates * work.tied_updates
        bytes_ = numpy.maximum(work.incoming_bytes, work.outgoing_bytes)
        bytes_ = bytes_ + tied_updates * work.tied_bytes
        # Nobody computes meanwhile.
        tied = tied_updates * ring_seconds(work.tied_bytes, group) / m
        return cls(
            compute,
            updates * ring / m + tied,
            updates * left / m + tied,
            bytes_ / (m * group.bandwidth),
        )

    @staticmethod
    def busy(work: StageWork, replicas: int | Indices) -> Array:
        """Return what one of the replicas computes for a minibatch, at speed 1."""
        shared = work.sharing_seconds * (replicas > 1)
        updates = work.updates_in_a_round(replicas)
        update = work.update_seconds - (1 - work.tied_updates) * work.tied_update_seconds
        busy: Array = (work.seconds + shared + updates * update) / replicas
        return busy

    def total(self) -> Array:
        """Return the seconds per minibatch that the stage needs."""
        slowest: Array = numpy.maximum(self.compute + self.left, self.messages)
        return slowest


def ring_seconds(bytes_: Array, group: Group) -> Array:
    """Return the seconds of an all-reduce; there is none of nothing."""
    each = bytes_ / (group.replicas * group.ring_bandwidth) + group.ring_latency
    found: Array = 2 * (group.replicas - 1) * each * (bytes_ > 0)
    return found
