"""From the computations of a worker to its actions: recomputation, messages and all-reduces.

Done once for all kinds of schedules. A kind orders ``F0 F1 B0 U1 …``; on the middle one of three
stages this becomes (``rF1.0:0>1@0`` receives, from worker 0, what stage 0 sends stage 1 for
minibatch 1, microbatch 0)::

    F1   →  rF1.0:0>1@0  F1.0  sF1.0:1>2@2     receive activations, pass, send them on
    B0   →  rB0.0:2>1@2  B0.0  sB0.0:1>0@0     the same for gradients, in the other direction
    U1   →  A1:1,4  U1                         with a second replica: sum the gradients first
    I0   →  rB0.0:2>1@2  I0.0  sB0.0:1>0@0     half a backward receives and sends as a whole one
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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


def with_whole_backwards(
    computations: Iterable[Computation], chunks: Collection[int] = (0,)
) -> Iterator[Computation]:
    """Put the halves of every backward of some stages together, where the second one stands.

    A whole backward takes less than its halves: it is for stages whose gradients nobody waits for.
    """
    for computation in computations:
        match computation:
            case BackwardInput(chunk=chunk) if chunk in chunks:
                pass
            case BackwardWeight(minibatch, microbatch, chunk) if chunk in chunks:
                yield Backward(minibatch, microbatch, chunk)
            case _:
                yield computation


def with_recomputation(
    computations: Iterable[Computation], chunks: Collection[int] = (0,)
) -> Iterator[Computation]:
    """Recompute the activations of a backward of some stages, unless its forward is just before it.

    In that case there is nothing to gain.
    """
    before: Computation | None = None
    for computation in computations:
        if isinstance(computation, Backward | BackwardInput) and computation.chunk in chunks:
            passed = (*computation.part, computation.chunk)
            if before != Forward(*passed):
                yield Recompute(*passed)
        yield computation
        before = computation


def received_as_sent(
    actions: Mapping[int, Sequence[Action]],
) -> dict[int, tuple[Action, ...]]:
    """Let every worker receive what another sends it in the order in which that sends it.

    On two ways between the same workers, as a folded pipeline has, or with sums for several ties,
    messages may be needed in another order. What was sent before a message that is needed is then
    received before it.
    """
    sent: dict[tuple[int, int], deque[Message]] = defaultdict(deque)
    for worker, own in actions.items():
        for action in own:
            if isinstance(action, Send):
                sent[worker, action.to].append(action.message)

    def ordered(worker: int) -> Iterator[Action]:
        early: set[Message] = set()
        for action in actions[worker]:
            if not isinstance(action, Receive):
                yield action
                continue
            waiting = sent[action.sender, worker]
            while action.message not in early:
                message = waiting.popleft()
                early.add(message)
                yield Receive(message, action.sender)

    return {worker: tuple(ordered(worker)) for worker in actions}


@dataclass(frozen=True)
class Lowering:
    """A rule that adds communication to the computations of the workers of one stage, or two.

    Attributes:
        pipeline: the stages, their workers, and the edges between them.
        stages: whose workers, by chunk.
        microbatches: of a minibatch.
        share_norm: sum the squared norm of all stages' gradients before every update.
    """

    pipeline: Pipeline
    stages: tuple[int, ...]
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
        part, stage = forward.part, self.stages[forward.chunk]
        for edge in self.pipeline.incoming(stage):
            if edge.source not in self.stages:
                message = Message("activation", edge.source, stage, *part)
                yield Receive(message, self._taking(edge.source, part))
        yield forward
        for edge in self.pipeline.outgoing(stage):
            if edge.target not in self.stages:
                message = Message("activation", stage, edge.target, *part)
                yield Send(message, self._taking(edge.target, part))

    def _backward(self, backward: Backward | BackwardInput) -> Iterator[Action]:
        part, stage = backward.part, self.stages[backward.chunk]
        for edge in self.pipeline.outgoing(stage):
            if edge.differentiable and edge.target not in self.stages:
                message = Message("gradient", edge.target, stage, *part)
                yield Receive(message, self._taking(edge.target, part))
        yield backward
        for edge in self.pipeline.incoming(stage):
            if edge.differentiable and edge.source not in self.stages:
                message = Message("gradient", stage, edge.source, *part)
                yield Send(message, self._taking(edge.source, part))

    def _update(self, update: Update) -> Iterator[Action]:
        replicas = self.pipeline.stages[self.stages[0]]
        if len(replicas) > 1:
            yield AllReduce(update.version, replicas)
        if self.share_norm and len(self.pipeline.workers) > len(replicas):
            yield AllReduce(update.version, self.pipeline.workers, "squared_norm")
        yield update

    def _taking(self, stage: int, part: MicrobatchId) -> int:
        """Return the worker of a stage that takes a part."""
        replicas = self.pipeline.stages[stage]
        return replicas[replica_of(part, self.microbatches, len(replicas))]
