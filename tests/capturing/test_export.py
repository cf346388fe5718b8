"""An exported graph that reads its weights by name: the one that torch.export's own way gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx, nn

from drlpp.capturing.export import unlift
from drlpp.errors import ModelNote
from tests.support.models.captured_modules import captured_from


class Model(nn.Module):
    """Weights that are tied or unused, buffers of both kinds, constants, a region, a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.deep = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), nn.ReLU())
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.first.weight
        self.unused = nn.Parameter(torch.zeros(1))
        self.register_buffer("kept", torch.ones(4))
        self.register_buffer("passing", torch.ones(4), persistent=False)
        self.literal = torch.full((4,), 3.0)

    def forward(self, input: Tensor, *more: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            self.kept += 1
            scale = input.sum(0) * self.passing
        x = self.tied(self.deep(self.first(input)) * scale) + torch.tensor([1.0, 2.0, 3.0, 4.0])
        return {"x": x.add_(self.literal) + more[0], "input": input}


def exported(module: nn.Module) -> torch.export.ExportedProgram:
    return torch.export.export(module, (torch.randn(2, 4), torch.randn(2, 4)))


def written(graph: fx.Graph) -> list[str]:
    return [f"{node.op} {node.name} {node.target} {node.args}" for node in graph.nodes]


def test_it_has_the_nodes_and_names_of_torchs_own_way() -> None:
    program = exported(Model())
    expected = program.module()
    for node in expected.graph.find_nodes(op="call_module", target="_guards_fn"):
        expected.graph.erase_node(node)
    graph, root, _ = unlift(program)
    assert written(graph) == written(expected.graph)
    assert graph.python_code("self").src == expected.graph.python_code("self").src
    for name, tensor in fx.GraphModule(root, graph).named_parameters(remove_duplicate=False):
        assert tensor is expected.get_parameter(name)


def test_a_constant_that_requires_gradients_is_noted() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.scale = torch.ones(4, requires_grad=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) * self.scale

    with pytest.warns(ModelNote, match="attribute scale requires gradients"):
        captured = captured_from(Scaled(), torch.randn(2, 4))
    assert not captured.constants["scale"].requires_grad
