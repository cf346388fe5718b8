"""The memory that a stage needs on an accelerator: weights and what goes with them, activations.

While it computes, a stage holds more than what is kept for backwards and its messages.
The backward of an operator holds the gradients of what it makes and of what it reads. The loss
holds two tensors as large as what the model returns: of a language model these are its largest. By
the backward of operator i, what the later operators of the stage had kept is free again, so with
working bytes w and kept bytes k a stage needs

    max over its operators i of  w_i − (sum of k_j over its later operators j)

more than all that it keeps, if that is above 0. Gradients that cross the border of a stage count
among its messages as well, so a stage may take less.

Where one part makes an update, gradients of the weights of earlier operators are not there yet, so
a stage needs less than w_i by these. Where several parts or replicas do, the gradient of a weight
is there twice when it is added to that of earlier parts: w_i has that of operator i's weights, too.
A backward in two halves makes the gradients of all weights together.

What libraries allocate by themselves is left out, such as copies that convolutions make, what an
optimizer's step does, and the model's inputs. Torch allocates this on a CPU to a percent (its test,
whose convolutions are small); on a GPU (benchmarks/gpu.py) it is not measured since these rules are
as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from drlpp.costs.profile import Profile
from drlpp.costs.stage_cost import Array, StageWork
from drlpp.costs.tensors import transfers_of
from drlpp.schedule.method import DEFAULT_METHOD, Method
from drlpp.specs.optimizer_spec import OptimizerSpec


@dataclass(frozen=True)
class MemoryModel:
    """How the memory of a stage follows from its work and the parts it has in flight.

    Attributes:
        method: its policy keeps versions of weights, and its schedule has so much in flight
            (docs/methods.md).
        state_copies: elements of the optimizer's state for each weight; 1 for momentum.
    """

    method: Method = DEFAULT_METHOD
    state_copies: float = 1.0

    @classmethod
    def of(cls, method: Method, optimizer: OptimizerSpec) -> MemoryModel:
        """Return what a weight policy and an optimizer keep.

        Left out are XPipe's own moments beside an optimizer other than Adam, and the last gradient
        where a prediction is made from it.
        """
        return cls(method, _state_copies(optimizer))

    @property
    def weight_copies(self) -> float:
        """Tensors as large as the weights, these, their gradients and the state included."""
        return 2 + self.state_copies + self._policy_copies

    @property
    def _policy_copies(self) -> int:
        facts, moves = self.method.policy_facts, self.method.lookahead is not None
        return facts.copies if moves or facts.lookahead is None else 0

    def older_versions(
        self, in_flight: Array | int, replicas: Array | int | None = None
    ) -> Array | int:
        """Return how many versions besides the newest a stage stashes: its s in steady state.

        Without the number of ``replicas`` it is the bound that holds for any: one for each part in
        flight beyond the first.
        """
        if replicas is None:
            return in_flight - 1
        together = replicas if self.method.flushes else self.method.parts_of_update(replicas)
        return -(-(in_flight - 1) * replicas // together)

    def stage_bytes(
        self,
        work: StageWork,
        in_flight: Array | int,
        replicas: Array | int | None = None,
        stages: Sequence[int] | int | None = None,
        *,
        counted: bool = False,
    ) -> Array:
        """Return the bytes on each of a stage's replicas with ``in_flight`` parts in flight.

        What computing a part needs is held once, its messages twice: of those that come in one is
        there and the next expected, of those that go out one may still be on its way.
        Of weights that other stages hold copies of, what these contribute to an update is held
        once, and what is on its way between copies: as many updates of it as there are in flight,
        and on a stage that sums the last sum and the place for the next; of a flush the sum.

        ``stages`` are their numbers, by default all of a placement in order: where each says of
        itself whether it recomputes. Of a schedule that flushes, a whole minibatch counts for every
        part, unless these are ``counted`` in the schedule.
        """
        method = self.method
        parts = 1 if method.flushes and not counted else method.microbatches
        recomputes: Any = method.recompute
        if isinstance(recomputes, tuple):
            recomputes = numpy.array(recomputes)[... if stages is None else stages]
        older = self.older_versions(in_flight, replicas)
        facts = method.policy_facts
        copies = self.weight_copies + facts.stashes * older
        incoming = work.incoming_bytes / parts
        kept = work.kept_bytes / parts
        messages = 2 * (incoming + work.outgoing_bytes / parts)
        activations = numpy.where(recomputes, kept + incoming * (in_flight - 1), kept * in_flight)
        passed_on = 2 if method.flushes else 1 + older + 2 * numpy.greater(older, 0)
        contributed = work.tied_bytes * passed_on
        working = work.working_bytes / method.microbatches
        # Copies of tied weights are late on the last stage, too.
        on_time = numpy.equal(in_flight, 1) * (work.parameter_bytes - work.tied_bytes)
        # The two stages next to the input have no updates to look ahead of it.
        ahead = facts.copies_on_time * (stages is None or numpy.greater(stages, 1))
        weights = work.parameter_bytes * copies - on_time * (self._policy_copies - ahead)
        return weights + activations + working + messages + contributed


def _state_copies(optimizer: OptimizerSpec) -> float:
    """Return the elements of the optimizer's state for each element of a weight.

    They are found by making a step. Of an optimizer that treats some weights otherwise than
    matrices, or has groups of parameters, it is the most.
    """
    import torch

    if optimizer.groups:
        alone = optimizer.model_copy(update={"groups": ()})
        others = (optimizer.of_group(group) for group in optimizer.groups)
        return max(map(_state_copies, (alone, *others)))

    def of_a_weight(*shape: int) -> float:
        weight = torch.zeros(shape, requires_grad=True)
        weight.grad = torch.ones_like(weight)
        instance = kind([weight], **optimizer.complete)
        instance.step()
        state = [value for value in instance.state[weight].values() if torch.is_tensor(value)]
        # A step counter of one element is not worth a word.
        return sum(value.numel() for value in state if value.numel() > 1) / weight.numel()

    kind = optimizer.find()
    return max(of_a_weight(*shape) for shape in getattr(kind, "example_shapes", [(4, 4)]))


DEFAULT_MEMORY = MemoryModel()
"""The memory of the default method: weights, gradients, momentum, and W_t during a prediction."""


_TENSORS_OF_LOSS = 2
"""As large as what the model returns: of a softmax its gradient, and the gradient behind it."""


def working_bytes_of(profile: Profile) -> Array:
    """Return w of every operator, and then of the loss: shape ``(operators + 1,)``.

    What takes no time and keeps nothing is a view of what it reads, and has no memory of its own.
    """
    operators = len(profile.graph)
    found = numpy.zeros(operators + 1)
    for transfer in transfers_of(profile.graph):
        found[list(transfer.members)] += transfer.backward_bytes
    found[operators] *= _TENSORS_OF_LOSS
    for number, cost in enumerate(profile.operators):
        seconds = cost.forward_seconds + cost.backward_seconds
        if cost.working_bytes is not None:
            found[number] = cost.working_bytes
        elif not (seconds or cost.kept_bytes or profile.graph.operators[number].parameter_bytes):
            found[number] = 0.0
    return found


def beyond_kept(
    working: Array,
    kept: Array,
    inside: NDArray[numpy.bool_],
    last: NDArray[numpy.bool_],
    made: Array | None = None,
) -> Array:
    """Return what each stage needs beyond what it keeps: shape ``(stages,)``.

    Args:
        working: w of every operator and of the loss.
        kept: k of every operator, in a topological order.
        inside: which operators a stage has, of shape ``(stages, operators)``.
        last: which stages have the loss.
        made: of every stage and operator the gradients that are not there before its backward,
            though they count. Then a stage may need less than all.
    """
    so_far = numpy.cumsum(inside * kept, axis=1)
    later = so_far[:, -1:] - so_far
    to_come, least = numpy.zeros((2, len(inside)))
    if made is not None:
        until = numpy.cumsum(made, axis=1)
        later, to_come = later + until - made, until[:, -1]
        # When all gradients are there, and before there is any.
        least = numpy.maximum(-so_far[:, -1], -to_come)
    of_loss = numpy.where(last, working[-1] - to_come, least)
    found: Array = numpy.where(inside, working[:-1] - later, least[:, None]).max(axis=1)
    return numpy.maximum(numpy.maximum(found, of_loss), least)
