"""The encoder is eq. 1 of drl-pp, written down with dense matrices."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch_geometric.nn import MessagePassing

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


def test_units_are_the_width_of_the_result() -> None:
    encoder = GraphEncoder(8, units=(32, 64, 128))
    widths = [layer.itself.out_features + layer.neighbours.out_features for layer in encoder.layers]  # type: ignore
    assert widths == [32, 64, 128]


def test_it_passes_no_messages_of_pyg() -> None:
    """Which writes its source into the temporary folder, for ever."""
    assert not any(isinstance(part, MessagePassing) for part in GraphEncoder(8).modules())


@pytest.mark.slow
def test_it_leaves_no_file_behind(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    program = "import drlpp.agents.paper.encoder as e; e.GraphConvolution(4, 4)"
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=120)
    assert list(tmp_path.iterdir()) == []
