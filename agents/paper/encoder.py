"""The graph encoder: three graph convolutions (drl-pp §3.1, eq. 1)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


class GraphConvolution(nn.Module):
    r"""GConv(X, A) = σ(XΘ || D̃⁻¹ÃXΘ′) (drl-pp eq. 1).

    Ã is the adjacency matrix with self-loops, D̃ its degree matrix, || concatenates, and σ is tanh.
    The paper's "units" are read as the width of the result, so Θ and Θ′ have half of it each; then
    the last layer's 128 units are what the partitioner's LSTMs of 128 units take. Biases are added
    to both halves.

    Args:
        in_features: F_in.
        units: F_out, even.

    Shapes:
        - nodes: ``(operators, F_in)``
        - edges: ``(2, edges)``, both directions of each and no self-loops
        - result: ``(operators, F_out)``
    """

    def __init__(self, in_features: int, units: int) -> None:
        super().__init__()
        self.itself = nn.Linear(in_features, units // 2)
        self.neighbours = nn.Linear(in_features, units // 2)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """Convolve once."""
        loops = torch.arange(len(nodes), device=edges.device).expand(2, -1)
        sources, targets = torch.cat([edges, loops], dim=1)
        # D̃⁻¹Ã is the mean over an operator and its neighbours. (D̃⁻¹ÃX)Θ′ = D̃⁻¹Ã(XΘ′), and the
        # narrower of the two is summed. The bias passes through unchanged, since the rows of D̃⁻¹Ã
        # sum to 1.
        neighbours = self.neighbours(nodes)
        total = torch.zeros_like(neighbours).index_add(0, targets, neighbours[sources])
        degrees = torch.bincount(targets, minlength=len(nodes)).unsqueeze(1)
        return torch.tanh(torch.cat([self.itself(nodes), total / degrees], dim=1))


class GraphEncoder(nn.Module):
    """Graph convolutions one after the other (drl-pp §4.2: 32, 64 and 128 units).

    Shapes:
        - nodes: ``(operators, F_in)``
        - edges: ``(2, edges)``
        - result: ``(operators, units[-1])``
    """

    def __init__(self, in_features: int, units: Sequence[int] = (32, 64, 128)) -> None:
        super().__init__()
        widths = [in_features, *units]
        self.layers = nn.ModuleList(
            GraphConvolution(narrow, wide) for narrow, wide in pairwise(widths)
        )

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """Return the representation H_v of every operator."""
        for layer in self.layers:
            nodes = layer(nodes, edges)
        return nodes
