"""Which nodes make an operator: what computes nothing belongs to its producer or reader."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.models.captured_modules import (
    captured_from,
    check_structure,
    gradients,
    run_in_pieces,
    types,
)


def test_operators_are_named_after_their_modules() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
            self.act = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.act(self.block(x)) + 1)

    graph = captured_from(Twice(), torch.randn(2, 4)).graph
    names = [operator.name for operator in graph.operators]
    assert names == ["block.0.linear", "block.1.relu", "act.relu", "add", "act.relu_1"]
    assert graph.operators[0].module == "block.0"
    assert graph.operators[0].parameter_bytes == 4 * (16 + 4)
    assert graph.parameter_bytes == 4 * (16 + 4)


class TiedLanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(5, 5)
        self.embedding = nn.Embedding(7, 5)
        self.hidden = nn.Linear(5, 5)
        self.head = nn.Linear(5, 7, bias=False)
        self.after = nn.Linear(7, 3)
        self.unused = nn.Linear(2, 2)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, extra: Tensor) -> Tensor:
        x = self.hidden(self.embedding(tokens)) + self.before(extra)
        return self.after(self.head(x))


def test_tied_parameters_are_read_by_several_operators() -> None:
    module = TiedLanguageModel()
    inputs = torch.randint(7, (2,)), torch.randn(2, 5)
    captured = captured_from(module, *inputs)
    check_structure(captured)
    assert types(captured) == ["embedding", "linear", "linear", "add", "linear", "linear"]
    (shared,) = captured.graph.shared_parameters
    assert (shared.operators, shared.bytes_) == ((0, 4), 4 * 7 * 5)
    own = sum(value.nbytes for name, value in module.named_parameters() if "unused" not in name)
    assert captured.graph.parameter_bytes == own
    assert captured.aliases in (
        {"head.weight": "embedding.weight"},
        {"embedding.weight": "head.weight"},
    )
    assert next(iter(captured.aliases.values())) in dict(captured.module.named_parameters())
    module.load_state_dict(captured.state)
    assert "unused.weight" in captured.state
    torch.testing.assert_close(run_in_pieces(captured, *inputs), [module(*inputs)])


def test_slices_of_a_weight_belong_to_their_readers() -> None:
    class Sliced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 4))

        def forward(self, x: Tensor) -> Tensor:
            up, down = self.weight.split([4, 4])
            return F.linear(F.linear(x, up).relu(), down).relu()

    captured = captured_from(Sliced(), torch.randn(2, 4))
    assert types(captured) == ["linear", "relu"]
    assert captured.graph.operators[0].parameter_bytes == 4 * 32


def test_a_view_belongs_to_the_operator_that_made_the_tensor() -> None:
    class Viewed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            flat = x.square().flatten(1)
            return flat.exp() + flat.sin()

    captured = captured_from(Viewed(), torch.randn(2, 2, 2))
    assert types(captured) == ["square", "exp", "sin", "add"]
    assert captured.graph.operators[0].outputs[0].shape == (2, 4)


def test_what_is_computed_from_weights_alone_belongs_to_its_reader() -> None:
    module = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    captured = captured_from(nn.Sequential(module, nn.ReLU()), torch.randn(2, 4))
    assert types(captured) == ["linear", "relu"]
    assert captured.graph.operators[0].parameter_bytes == 4 * (16 + 4 + 4)


def test_running_statistics_are_written_in_one_operator() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4, affine=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.norm(x).exp()).sin()

    assert types(captured_from(Twice(), torch.randn(3, 4))) == ["batch_norm", "sin"]


def test_no_gradient_flows_through_a_region_without() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        @torch.no_grad()
        def scale(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", enabled=False):
                return x.exp()

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x)
            return y * self.scale(y)

    module, x = Partly(), torch.randn(2, 4)
    captured = captured_from(module, x)
    assert types(captured) == ["linear", "exp", "mul"]
    wanted = gradients(module, module(x).square().sum())
    torch.testing.assert_close(gradients(module, captured.module(x).square().sum()), wanted)


def test_what_several_operators_read_of_an_input_is_an_operator() -> None:
    class Halves(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            left, right = x.chunk(2, dim=1)
            return left.exp() + right.sin()

    captured = captured_from(Halves(), torch.randn(2, 4))
    check_structure(captured)
    assert types(captured) == ["chunk", "exp", "sin", "add"]
    assert captured.graph.predecessors == ((), (0,), (0,), (1, 2))
