"""A stage's copy of weights that other stages hold copies of (:mod:`drlpp.schedule.ties`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from drlpp.runtime.ipc.protocol import TiedPlan
from drlpp.runtime.stage.gradients import SingleGradients
from drlpp.runtime.stage.weight_group import WeightGroup


class TiedWeights(WeightGroup):
    """Weights whose gradients are summed over stages before an update.

    A *sum* is a list with a tensor for each weight, and one with a number for each: 0 for those
    without a gradient, whose tensor is 0. So it travels, and the optimizer leaves alone what no
    stage has a gradient of.

    Args:
        stage: that holds the copy.
        others: the arguments of a :class:`WeightGroup`.

    Attributes:
        plan: of the run.
    """

    plan: TiedPlan

    def __init__(self, *others: Any, stage: int, **named: Any) -> None:
        super().__init__(*others, **named)
        self.plan = TiedPlan(uses={}, rates=(), root=stage, others=())
        self._stage = stage

    @property
    def is_root(self) -> bool:
        """Whether the stage is the root of the tie; before the first run all are alike."""
        return self.plan.root == self._stage

    def contribution(self) -> list[Tensor]:
        """Take the gradients of this stage, summed over parts and replicas, as a sum."""
        found = self.gradients.take()
        reached = torch.tensor([float(gradient is not None) for gradient in found])
        filled = [
            torch.zeros_like(weight) if gradient is None else gradient.contiguous()
            for weight, gradient in zip(self.weights, found, strict=True)
        ]
        return [*filled, reached.to(self.weights[0].device)]

    def update_by(
        self, total: Sequence[Tensor], contributions: int, squared_norm: float | None
    ) -> bool:
        """Update the copy by a sum over all stages; arguments and result as in ``update``."""
        collecting, self.gradients = self.gradients, SingleGradients(self.weights)
        self.gradients.add(reached_of(total))
        try:
            return self.update(contributions, squared_norm)
        finally:
            self.gradients = collecting


def reached_of(total: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the gradients of a sum, None where no stage has one."""
    *gradients, reached = total
    return [g if count else None for g, count in zip(gradients, reached.tolist(), strict=True)]


def squared_norm_of(total: Sequence[Tensor]) -> float:
    """Return the squared norm of a sum."""
    norms = [torch.linalg.vector_norm(gradient).double() for gradient in total[:-1]]
    return torch.stack(norms).square().sum().item()
