"""The encoder is eq. 1 of drl-pp, written down with dense matrices."""

import torch
from hypothesis import given
from torch import Tensor

from drlpp.agents.paper.encoder import GraphConvolution, GraphEncoder
from drlpp.agents.paper.features import node_features, undirected_edges
from drlpp.capturing.graph import OpGraph
from tests.support.planning.fake_measurer import graphs


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
