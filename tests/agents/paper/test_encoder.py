"""The encoder is eq. 1 of drl-pp over the features of its §3.1."""

import torch
from hypothesis import given, settings
from torch import Tensor

from drlpp.agents.paper.encoder import (
    GraphConvolution,
    GraphEncoder,
    node_features,
    undirected_edges,
)
from drlpp.capturing.graph import OpGraph
from tests.support.planning.fake_measurer import branching, chain, graphs
from tests.support.strategies.graphs import tied_chain


def equation_1(layer: GraphConvolution, nodes: Tensor, edges: Tensor) -> Tensor:
    adjacency = torch.eye(len(nodes))
    adjacency[edges[0], edges[1]] = 1.0
    inverse_degree = torch.diag(1 / adjacency.sum(dim=1))
    itself = nodes @ layer.itself.weight.T + layer.itself.bias
    neighbours = (
        inverse_degree @ adjacency @ nodes @ layer.neighbours.weight.T + layer.neighbours.bias
    )
    return torch.tanh(torch.cat([itself, neighbours], dim=1))


@given(graph=graphs())
@settings(max_examples=15)
def test_it_equals_equation_1(graph: OpGraph) -> None:
    nodes, edges = node_features(graph), undirected_edges(graph)
    encoder = GraphEncoder(nodes.shape[1])
    expected = nodes
    for layer in encoder.layers:
        assert isinstance(layer, GraphConvolution)
        expected = equation_1(layer, expected, edges)
    encoded = encoder(nodes, edges)
    assert encoded.shape == (len(graph), 128)
    torch.testing.assert_close(encoded, expected, atol=1e-6, rtol=1e-5)


def test_features_of_a_small_graph() -> None:
    graph = branching(5)
    assert [(edge.source, edge.target) for edge in graph.edges] == [
        (0, 1), (0, 2), (1, 3), (2, 4), (3, 4),
    ]  # fmt: skip
    features = node_features(graph)
    # Types in alphabetical order: conv2d, linear, relu.
    assert features[:, :3].tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 1]]
    input_degree, input_size, output_degree, output_size, parameter_size = features[:, 3:].T
    assert input_degree.tolist() == [0, 0.5, 0.5, 0.5, 1]
    assert output_degree.tolist() == [1, 0.5, 0.5, 0.5, 0]
    bytes_ = torch.tensor([float(operator.output_bytes) for operator in graph.operators])
    read = torch.stack([torch.tensor(0.0), bytes_[0], bytes_[0], bytes_[1], bytes_[2] + bytes_[3]])
    assert torch.allclose(output_size, bytes_ / bytes_.max())
    assert torch.allclose(input_size, read / read.max())
    parameters = torch.tensor([float(operator.parameter_bytes) for operator in graph.operators])
    assert torch.allclose(parameter_size, parameters / parameters.max())


def test_edges_go_both_ways() -> None:
    assert undirected_edges(chain(3)).T.tolist() == [[0, 1], [1, 0], [1, 2], [2, 1]]
    assert undirected_edges(chain(1)).shape == (2, 0)


def test_a_shared_weight_joins_its_readers() -> None:
    shared = tied_chain([1, 1, 1], 8).graph
    assert undirected_edges(shared).T.tolist() == [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1]]
    frozen = tied_chain([1, 1, 1], 8, trained=False).graph
    assert undirected_edges(frozen).T.tolist() == undirected_edges(chain(3)).T.tolist()
