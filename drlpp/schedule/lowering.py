"""From the computations of a worker to its actions: recomputation, messages and all-reduces.

Done once for all kinds of schedules. A kind orders ``F0 F1 B0 U1 …``; on the middle one of three
stages this becomes (the textual form is that of :mod:`drlpp.schedule.action_text`)::

    F1   →  rF1.0:0>1@0  F1.0  sF1.0:1>2@2     receive activations, pass, send them on
    B0   →  rB0.0:2>1@2  B0.0  sB0.0:1>0@0     the same for gradients, in the other direction
    U1   →  A1:1,4  U1                         with a second replica: sum the gradients first
    I0   →  rB0.0:2>1@2  I0.0  sB0.0:1>0@0     half a backward receives and sends as a whole one
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from drlpp.schedule.actions import (
    Action,
    AllReduce,
    Backward,
    BackwardInput,
    BackwardWeight,
    Computation,
    Forward,
    Message,
    MicrobatchId,
    Receive,
    Recompute,
    Send,
    Update,
)
from drlpp.schedule.kinds.kind import replica_of
from drlpp.schedule.pipeline import Pipeline


def with_whole_backwards(computations: Iterable[Computation]) -> Iterator[Computation]:
    """Put the halves of every backward together, where the second one stands.

    A whole backward takes less than its halves: it is for stages whose gradients nobody waits for.
    """
    for computation in computations:
        match computation:
            case BackwardInput():
                pass
            case BackwardWeight():
                yield Backward(*computation.part)
            case _:
                yield computation


def with_recomputation(computations: Iterable[Computation]) -> Iterator[Computation]:
    """Recompute the activations of a backward, unless its forward is just before it.

    In that case there is nothing to gain.
    """
    before: Computation | None = None
    for computation in computations:
        if isinstance(computation, Backward | BackwardInput) and before != Forward(
            *computation.part
        ):
            yield Recompute(*computation.part)
        yield computation
        before = computation


@dataclass(frozen=True)
class Lowering:
    """A rule that adds communication to the computations of the workers of one stage.

    Attributes:
        pipeline: the stages, their workers, and the edges between them.
        stage: whose workers.
        microbatches: of a minibatch.
        share_norm: sum the squared norm of all stages' gradients before every update.
    """

    pipeline: Pipeline
    stage: int
    microbatches: int
    share_norm: bool

    def lower(self, computations: Iterable[Computation]) -> Iterator[Action]:
        """Yield every computation, with what it waits for before it and what it sends behind it."""
        for computation in computations:
            match computation:
                case Forward():
                    yield from self._forward(computation)
                case Backward() | BackwardInput():
                    yield from self._backward(computation)
                case Update():
                    yield from self._update(computation)
                case _:
                    yield computation

    def _forward(self, forward: Forward) -> Iterator[Action]:
        part = forward.part
        for edge in self.pipeline.incoming(self.stage):
            message = Message("activation", edge.source, self.stage, *part)
            yield Receive(message, self._taking(edge.source, part))
        yield forward
        for edge in self.pipeline.outgoing(self.stage):
            message = Message("activation", self.stage, edge.target, *part)
            yield Send(message, self._taking(edge.target, part))

    def _backward(self, backward: Backward | BackwardInput) -> Iterator[Action]:
        part = backward.part
        for edge in self.pipeline.outgoing(self.stage):
            if edge.differentiable:
                message = Message("gradient", edge.target, self.stage, *part)
                yield Receive(message, self._taking(edge.target, part))
        yield backward
        for edge in self.pipeline.incoming(self.stage):
            if edge.differentiable:
                message = Message("gradient", self.stage, edge.source, *part)
                yield Send(message, self._taking(edge.source, part))

    def _update(self, update: Update) -> Iterator[Action]:
        replicas = self.pipeline.stages[self.stage]
        if len(replicas) > 1:
            yield AllReduce(update.version, replicas)
        if self.share_norm and len(self.pipeline.stages) > 1:
            yield AllReduce(update.version, self.pipeline.workers, "squared_norm")
        yield update

    def _taking(self, stage: int, part: MicrobatchId) -> int:
        """Return the worker of a stage that takes a part."""
        replicas = self.pipeline.stages[stage]
        return replicas[replica_of(part, self.microbatches, len(replicas))]
