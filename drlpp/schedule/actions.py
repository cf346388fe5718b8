"""What workers do: the actions of a schedule, with what is known of each kind of action.

An action's class says what its time counts as, and what the simulator charges for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

Payload = Literal["activation", "gradient", "contribution", "sum"]
"""Of the last two :mod:`drlpp.schedule.ties` says what they are."""

TIED_PAYLOADS: frozenset[Payload] = frozenset({"contribution", "sum"})
Cost = Literal["forward", "backward", "backward_input", "backward_weight", "update"]

MicrobatchId = tuple[int, int]
"""What passes through a stage at once: (minibatch, microbatch)."""


@dataclass(frozen=True, slots=True)
class SpanKind:
    """One way in which a worker spends time; what does not compute is its bubble."""

    label: str
    computes: bool = True


WAITING = SpanKind("waiting", computes=False)


@dataclass(frozen=True, slots=True)
class Pass:
    """One microbatch passes a stage of the worker.

    ``chunk`` says which of the worker's stages, where it holds several, in their order.

    Attributes of the class:
        span: what its time counts as.
        units: what it takes where only the schedule counts and a forward takes 1.
        cost: which of a stage's costs the simulator charges.
    """

    span: ClassVar[SpanKind]
    units: ClassVar[float]
    cost: ClassVar[Cost]

    minibatch: int
    microbatch: int = 0
    chunk: int = 0

    @property
    def part(self) -> MicrobatchId:
        """What passes."""
        return self.minibatch, self.microbatch


@dataclass(frozen=True, slots=True)
class Forward(Pass):
    """Forward pass of the worker's stage for one microbatch."""

    span = SpanKind("forward")
    units = 1.0
    cost = "forward"


@dataclass(frozen=True, slots=True)
class Recompute(Pass):
    """The forward pass of a microbatch once more, whose activations were not kept.

    It stands before the gradients of the microbatch are waited for, and no update comes between
    it and the backward pass.
    """

    span = SpanKind("recompute")
    units = 1.0
    cost = "forward"


@dataclass(frozen=True, slots=True)
class Backward(Pass):
    """Backward pass of the worker's stage; adds to the gradients of the update in the making."""

    span = SpanKind("backward")
    units = 2.0
    cost = "backward"


@dataclass(frozen=True, slots=True)
class BackwardInput(Pass):
    """The half of a backward that gives the gradients of what the stage received.

    Its :class:`BackwardWeight` comes later on the same worker, on the same weights. Until then
    activations are kept.
    """

    span = SpanKind("backward I")
    units = 1.0
    cost = "backward_input"


@dataclass(frozen=True, slots=True)
class BackwardWeight(Pass):
    """The other half, which adds to the gradients of the update in the making."""

    span = SpanKind("backward W")
    units = 1.0
    cost = "backward_weight"


@dataclass(frozen=True, slots=True)
class Message:
    """What one stage sends to another for one microbatch: activations, or their gradients.

    For a tied update it is a ``contribution`` to the gradient of weights that both stages hold, or
    the ``sum`` of all. Its ``minibatch`` is then the last one of that update, its ``microbatch``
    the number of the tie.
    """

    payload: Payload
    source_stage: int
    target_stage: int
    minibatch: int
    microbatch: int


@dataclass(frozen=True, slots=True)
class Send:
    """Start sending ``message`` to worker ``to``; never waits for it to arrive."""

    span: ClassVar = SpanKind("sending", computes=False)
    units: ClassVar = 0.0

    message: Message
    to: int


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait for ``message`` from worker ``sender``."""

    span: ClassVar = WAITING
    units: ClassVar = 0.0

    message: Message
    sender: int


BUCKET_BYTES = 4 * 1024 * 1024
"""How large a bucket may grow; a larger weight has one of its own."""


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Sum something over ``workers`` for update ``version``.

    ``content`` is ``gradients``, of the replicas of a stage, or ``squared_norm``, of the gradients
    of all stages, for clipping and to skip updates that are not finite. It is ``tied_gradients``
    where replicas sum those of their copies of the weights of ``tie``, which are not among their
    ``gradients``; ``version`` is then that of the tied weights.
    """

    span: ClassVar = SpanKind("all-reduce", computes=False)
    units: ClassVar = 0.0

    version: int
    workers: tuple[int, ...]
    content: Literal["gradients", "squared_norm", "tied_gradients"] = "gradients"
    tie: int = 0


@dataclass(frozen=True, slots=True)
class Update:
    """Make weights number ``version`` from the gradients of ``contributions`` microbatches.

    The weights that a run starts with are number 0. The gradient is the mean over the
    contributions of all replicas, so it is what one large minibatch would give. Afterwards the
    weights contain the minibatches before number ``through``.
    """

    span: ClassVar = SpanKind("update")
    units: ClassVar = 0.0
    cost: ClassVar[Cost] = "update"

    version: int
    contributions: int
    through: int


@dataclass(frozen=True, slots=True)
class TiedUpdate:
    """Update a stage's copy of weights that other stages hold copies of (``Pipeline.ties``).

    The gradient is the sum over these stages of the means over the contributions of each.
    :mod:`drlpp.schedule.ties` adds it to the actions; its fields are those of :class:`Update`, with
    versions of the tied weights, and the stage's ``chunk`` as in :class:`Pass`.
    """

    span: ClassVar[SpanKind] = Update.span
    units: ClassVar[float] = 0.0
    cost: ClassVar[Cost] = "update"

    version: int
    contributions: int
    through: int
    tie: int = 0
    chunk: int = 0


Computation = Forward | Recompute | Backward | BackwardInput | BackwardWeight | Update
"""What a kind of schedule orders; :mod:`drlpp.schedule.lowering` adds the rest."""

COMPUTATIONS: tuple[type[Computation], ...] = (
    Forward,
    Backward,
    Recompute,
    BackwardInput,
    BackwardWeight,
    Update,
)

Action = Computation | TiedUpdate | Send | Receive | AllReduce
