"""Several models on several clusters at once, as one graph of parts that are not joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from drlpp.agents.transfer.context import PlacementContext
from drlpp.costs.stage_cost import Array


@dataclass(frozen=True, eq=False)
class ContextBatch:
    """Transferable contexts one after the other.

    Attributes:
        contexts: C of them.
        node_features: of all operators, ``(all operators, F)``.
        edges: ``(2, all edges)``.
        node_context: the context of every operator, ``(all operators,)``.
        first: the first operator of every context, ``(C,)``.
        global_features: ``(C, F_G)``.
        accelerator_features: ``(C, most, F_A)``, zeros where there is no such accelerator.
        accelerators: A of every context, ``(C,)``.
        speeds: the least and the largest relative speed, ``(C, 2)``.
        scales: what :func:`~drlpp.agents.transfer.relative_costs.stage_ideals` needs, ``(C, 3)``.
    """

    contexts: tuple[PlacementContext, ...]
    node_features: Tensor
    edges: Tensor
    node_context: Tensor
    first: NDArray[numpy.int64]
    global_features: Tensor
    accelerator_features: Tensor
    accelerators: NDArray[numpy.int64]
    speeds: Array
    scales: Array

    @classmethod
    def of(
        cls, contexts: Sequence[PlacementContext], device: torch.device | str = "cpu"
    ) -> ContextBatch:
        """Join contexts, all of them transferable."""
        sizes = [len(context) for context in contexts]
        costs = [context.costs for context in contexts if context.costs is not None]
        first = numpy.concatenate([[0], numpy.cumsum(sizes)[:-1]]).astype(numpy.int64)
        return cls(
            contexts=tuple(contexts),
            node_features=torch.cat([c.node_features for c in contexts]).to(device),
            edges=torch.cat(
                [c.edges + int(at) for c, at in zip(contexts, first, strict=True)], dim=1
            ).to(device),
            node_context=torch.repeat_interleave(torch.tensor(sizes)).to(device),
            first=first,
            global_features=torch.stack([c.global_features for c in contexts]).to(device),
            accelerator_features=torch.nn.utils.rnn.pad_sequence(
                [c.accelerator_features for c in contexts], batch_first=True
            ).to(device),
            accelerators=numpy.array([c.accelerators for c in contexts]),
            speeds=numpy.array([(c.speeds.min(), c.speeds.max()) for c in costs]),
            scales=numpy.stack([c.scale for c in costs]),
        )

    def pooled(self, nodes: Tensor) -> Tensor:
        """Return mean and maximum of the operators' representations, ``(C, 2 · units)``."""
        count, width = len(self.contexts), nodes.shape[1]
        index = self.node_context[:, None].expand_as(nodes)
        zeros = nodes.new_zeros(count, width)
        mean = zeros.scatter_reduce(0, index, nodes, "mean", include_self=False)
        most = zeros.scatter_reduce(0, index, nodes, "amax", include_self=False)
        return torch.cat([mean, most], dim=1)
