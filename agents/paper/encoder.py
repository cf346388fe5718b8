"""What drl-pp's encoder sees of a graph, and its three graph convolutions (drl-pp §3.1, eq. 1)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

import torch
from torch import Tensor, nn

from drlpp.capturing.graph import OpGraph


def node_features(graph: OpGraph) -> Tensor:
    """Return the features of every operator: one-hot type, then five numbers from 0 to 1.

    The numbers are input degree, input size, output degree, output size and parameter size, each
    divided by the largest in the graph. The input size counts the tensors that an operator reads
    from others, so that of the model's own inputs is 0.

    Returns:
        Shape ``(operators, types + 5)``, float32.
    """
    types = sorted({operator.type for operator in graph.operators})
    one_hot = torch.zeros(len(graph), len(types))
    for operator in graph.operators:
        one_hot[operator.id, types.index(operator.type)] = 1.0
    input_bytes = [0] * len(graph)
    for edge in graph.edges:
        outputs = graph.operators[edge.source].outputs
        input_bytes[edge.target] += sum(outputs[index].bytes_ for index in edge.outputs)
    columns = [
        [len(read) for read in graph.predecessors],
        input_bytes,
        [len(readers) for readers in graph.successors],
        [operator.output_bytes for operator in graph.operators],
        [operator.parameter_bytes for operator in graph.operators],
    ]
    numbers = torch.tensor(columns, dtype=torch.float64).T
    largest = numbers.max(dim=0).values.clamp(min=1.0)
    return torch.cat([one_hot, (numbers / largest).float()], dim=1)


def undirected_edges(graph: OpGraph) -> Tensor:
    """Return every pair of joined operators in both directions, once each.

    Operators are joined by a tensor, or by a weight that both read and train.

    Returns:
        Source and target operators, shape ``(2, edges)``, int64.
    """
    pairs = {(edge.source, edge.target) for edge in graph.edges}
    for shared in graph.shared_parameters:
        if shared.trained:
            pairs |= set(combinations(shared.operators, 2))
    both = sorted(pairs | {(target, source) for source, target in pairs})
    return torch.tensor(both, dtype=torch.int64).reshape(-1, 2).T


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
        # PyG takes seconds to import, and is needed nowhere else.
        from torch_geometric.nn import MeanAggregation

        # Not PyG's MessagePassing, which leaves a file in the temporary folder of every process.
        self.mean = MeanAggregation()
        self.itself = nn.Linear(in_features, units // 2)
        self.neighbours = nn.Linear(in_features, units // 2)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """Convolve once."""
        from torch_geometric.utils import add_self_loops

        (sources, targets), _ = add_self_loops(edges, num_nodes=len(nodes))
        # D̃⁻¹Ã is the mean over an operator and its neighbours. (D̃⁻¹ÃX)Θ′ = D̃⁻¹Ã(XΘ′), and the
        # narrower of the two is summed. The bias passes through unchanged, since the rows of D̃⁻¹Ã
        # sum to 1.
        mean = self.mean(self.neighbours(nodes)[sources], targets, dim_size=len(nodes))
        return torch.tanh(torch.cat([self.itself(nodes), mean], dim=1))


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
