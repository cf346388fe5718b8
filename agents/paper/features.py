"""What the graph encoder sees of a model: node features and undirected edges (drl-pp §3.1)."""

from __future__ import annotations

from itertools import combinations

import torch
from torch import Tensor

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
    numbers = torch.tensor(
        [
            [
                len(graph.predecessors[operator.id]),
                input_bytes[operator.id],
                len(graph.successors[operator.id]),
                operator.output_bytes,
                operator.parameter_bytes,
            ]
            for operator in graph.operators
        ],
        dtype=torch.float64,
    )
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
