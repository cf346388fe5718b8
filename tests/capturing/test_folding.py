"""Which nodes make an operator, and which operators weights keep together or tie."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

from drlpp.errors import ModelNote
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


def test_a_view_belongs_to_the_last_of_what_it_reads() -> None:
    class Expanded(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            first = x.exp()
            return first.sum(1, keepdim=True).expand_as(first).cos()

    captured = captured_from(Expanded(), torch.randn(2, 4))
    assert types(captured) == ["exp", "sum", "cos"]


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


def test_a_module_that_two_others_call_is_an_operator_in_each() -> None:
    class Part(nn.Module):
        def __init__(self, tokens: nn.Embedding) -> None:
            super().__init__()
            self.tokens, self.own = tokens, nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.own(self.tokens(x))

    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            shared = nn.Embedding(9, 4)
            self.encoder, self.decoder = Part(shared), Part(shared)

        def forward(self, x: Tensor) -> Tensor:
            return self.encoder(x) + self.decoder(x)

    graph = captured_from(Parts(), torch.randint(0, 9, (2, 3))).graph
    assert [operator.type for operator in graph.operators[:4]] == ["embedding", "linear"] * 2
    assert [shared.operators for shared in graph.shared_parameters] == [(0, 2)]


def test_operators_that_read_one_view_of_a_weight_stay_together() -> None:
    class Transposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Tanh(), nn.Linear(4, 4, bias=False)
            self.after = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            transposed = self.second.weight.t()
            return self.after(self.first(x @ transposed) @ transposed)

    graph = captured_from(Transposed(), torch.randn(2, 4)).graph
    assert [operator.type for operator in graph.operators] == ["matmul", "linear"]
    assert not graph.shared_parameters


def test_a_tie_whose_division_would_make_a_cycle_stays_together() -> None:
    class Cyclic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.output = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.output.weight, self.after = self.tokens.weight, nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.after(self.tokens(self.output(self.tokens(x))))

    graph = captured_from(Cyclic(), torch.randn(2, 4)).graph
    assert [operator.name for operator in graph.operators] == ["tokens.linear", "after.relu"]
    assert not graph.shared_parameters


class Repeated(nn.Module):
    """One layer called several times, with another in between or not."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.shared, self.calls = nn.Linear(4, 4), calls
        self.others = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.calls):
            x = self.shared(x).relu()
        for other in self.others:
            x = other(x)
        return x


def test_a_layer_that_is_called_again_and_again_is_named_where_it_is_most_of_the_model() -> None:
    with pytest.warns(ModelNote, match="parameters shared.weight and shared.bias .* by shared"):
        captured_from(Repeated(calls=4), torch.randn(2, 4))


def test_a_cell_with_steps_of_its_own_is_one_layer() -> None:
    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.input, self.state = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            state = torch.zeros_like(x[:, 0])
            for step in x.unbind(1):
                state = torch.tanh(self.input(step) + self.state(state))
            return state

    layers = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(12)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        captured_from(nn.Sequential(Cell(), *layers), torch.randn(2, 3, 4))
