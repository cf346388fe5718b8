"""The memory that a stage needs on an accelerator: weights and what goes with them, activations."""

from __future__ import annotations

from dataclasses import dataclass

from drlpp.costs.workload import Array, StageWork
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec


@dataclass(frozen=True)
class MemoryModel:
    """How the memory of a stage follows from its work and the minibatches it has in flight.

    Attributes:
        weight_copies: tensors as large as the weights, these, their gradients and the optimizer's
            state included.
        stashes: one more version of the weights for every further minibatch in flight.
        recomputes: only what a stage received is kept for the minibatches that wait.
        in_flight_per_link: how many there are beyond NOAM
            (:meth:`drlpp.schedule.pipeline.Pipeline.in_flight`).
    """

    weight_copies: float
    stashes: bool = False
    recomputes: bool = False
    in_flight_per_link: int = 0

    @classmethod
    def of(cls, method: Method, optimizer: OptimizerSpec) -> MemoryModel:
        """Return what a weight policy and an optimizer keep (docs/methods.md)."""
        return cls.with_state(method, _state_copies(optimizer))

    @classmethod
    def with_state(cls, method: Method, state_copies: float = 1.0) -> MemoryModel:
        """Return the same for an optimizer with ``state_copies`` state elements for each weight."""
        return cls(
            weight_copies=2 + state_copies + method.policy_facts.copies,
            stashes=method.policy_facts.stashes,
            recomputes=method.recompute,
            in_flight_per_link=method.in_flight_per_link,
        )

    def stage_bytes(self, work: StageWork, in_flight: Array | int) -> Array:
        """Return the bytes on each replica of a stage with ``in_flight`` minibatches in flight.

        Messages that come in or go out are held once.
        """
        copies = self.weight_copies + self.stashes * (in_flight - 1)
        messages = work.incoming_bytes + work.outgoing_bytes
        if self.recomputes:
            activations = work.kept_bytes + work.incoming_bytes * (in_flight - 1)
        else:
            activations = work.kept_bytes * in_flight
        total: Array = work.parameter_bytes * copies + activations + messages
        return total


def _state_copies(optimizer: OptimizerSpec) -> float:
    """Return the elements of the optimizer's state for each element of a weight.

    They are found by making a step.
    """
    import torch

    weight = torch.zeros(4, 4, requires_grad=True)
    weight.grad = torch.ones_like(weight)
    instance = optimizer.find()([weight], **optimizer.complete)
    instance.step()
    state = [value for value in instance.state[weight].values() if torch.is_tensor(value)]
    # A step counter of one element is not worth a word.
    return sum(value.numel() for value in state if value.numel() > 1) / weight.numel()


DEFAULT_MEMORY = MemoryModel(weight_copies=4)
"""The memory of the default method: weights, gradients, momentum, and W_t during a prediction."""
