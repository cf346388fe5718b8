"""What stages do for one minibatch, as arrays: of one stage, or of many at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import overload

import numpy
from numpy.typing import NDArray

Array = NDArray[numpy.float64]
Indices = NDArray[numpy.int_]


def sums_of(stage_of: Indices, values: Array, stages: int) -> Array:
    """Add up values by the stage that each belongs to."""
    found: Array = numpy.bincount(stage_of, values, stages).astype(numpy.float64, copy=False)
    return found


def _nothing() -> Array:
    return numpy.zeros(())


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
            (:class:`drlpp.costs.message_load.TiedSums`).
        microbatches: parts of a minibatch, by which replicas take turns.
        accumulate: minibatches whose gradients make one update.
        flushes: whether all stages make their updates together.
    """

    seconds: Array
    one_backward_seconds: Array
    update_seconds: Array
    sharing_seconds: Array
    parameter_bytes: Array
    kept_bytes: Array
    incoming_bytes: Array
    outgoing_bytes: Array
    working_bytes: Array = field(default_factory=_nothing)
    tied_bytes: Array = field(default_factory=_nothing)
    tied_update_seconds: Array = field(default_factory=_nothing)
    tied_updates: Array = field(default_factory=_nothing)
    microbatches: int = 1
    accumulate: int = 1
    flushes: bool = False

    def chosen(self, stages: int | Sequence[int]) -> StageWork:
        """Return the work of one or some of many stages."""

        def taken(values: Array) -> Array:
            return numpy.take(values, stages) if values.ndim else values

        return StageWork(
            seconds=taken(self.seconds),
            one_backward_seconds=taken(self.one_backward_seconds),
            update_seconds=taken(self.update_seconds),
            sharing_seconds=taken(self.sharing_seconds),
            parameter_bytes=taken(self.parameter_bytes),
            kept_bytes=taken(self.kept_bytes),
            working_bytes=taken(self.working_bytes),
            incoming_bytes=taken(self.incoming_bytes),
            outgoing_bytes=taken(self.outgoing_bytes),
            tied_bytes=taken(self.tied_bytes),
            tied_update_seconds=taken(self.tied_update_seconds),
            tied_updates=taken(self.tied_updates),
            microbatches=self.microbatches,
            accumulate=self.accumulate,
            flushes=self.flushes,
        )

    def updates_in_a_round(self, replicas: int | Indices) -> float | Array:
        """Return how many updates ``replicas`` make of as many minibatches.

        That is one if every replica takes a minibatch, more if they take microbatches, and less if
        gradients are accumulated.
        """
        return replicas / self.minibatches_of_update(replicas)

    @overload
    def minibatches_of_update(self, replicas: int) -> int: ...

    @overload
    def minibatches_of_update(self, replicas: Indices) -> Indices: ...

    @overload
    def minibatches_of_update(self, replicas: int | Indices) -> int | Indices: ...

    def minibatches_of_update(self, replicas: int | Indices) -> int | Indices:
        """Return how many minibatches make an update of ``replicas``."""
        if self.flushes:
            return 0 * replicas + self.accumulate
        return -(-replicas // (self.accumulate * self.microbatches)) * self.accumulate
