"""Node features are those of drl-pp §3.1."""

import torch

from drlpp.agents.paper.features import node_features, undirected_edges
from tests.support.planning.fake_measurer import branching, chain
from tests.support.strategies.graphs import tied_chain


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
