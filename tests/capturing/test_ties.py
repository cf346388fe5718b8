"""Which operators weights keep together, with what it costs and a way out, and which share them."""

import warnings

import pytest
import torch
from torch import Tensor, nn

from drlpp.errors import ModelNote
from tests.support.models.captured_modules import captured_from


class Tied(nn.Module):
    """An embedding that is the output layer too, three operators in between, one after it."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.tokens = nn.Embedding(9, 4)
        self.hidden = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.output = nn.Linear(4, 9, bias=False)
        self.after = nn.Linear(9, 9)
        if tied:
            self.output.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.output(self.hidden(self.tokens(x))))


def test_modules_that_share_a_weight_are_operators_of_their_own() -> None:
    graph = captured_from(Tied(), torch.randint(0, 9, (2, 3))).graph
    names = [operator.name.split(".")[0] for operator in graph.operators]
    assert names == ["tokens", "hidden", "hidden", "hidden", "output", "after"]
    (shared,) = graph.shared_parameters
    assert shared.operators == (0, 4)
    assert shared.bytes_ == graph.operators[0].parameter_bytes == graph.operators[4].parameter_bytes
    untied = captured_from(Tied(tied=False), torch.randint(0, 9, (2, 3))).graph
    assert not untied.shared_parameters
    assert graph.parameter_bytes == untied.parameter_bytes - shared.bytes_
    assert graph.held_parameter_bytes([0, 4]) == graph.held_parameter_bytes([0]) == shared.bytes_


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


def test_frozen_weights_are_shared_but_not_trained() -> None:
    module = Tied().requires_grad_(False)
    module.after.requires_grad_(True)
    graph = captured_from(module, torch.randint(0, 9, (2, 3))).graph
    assert [shared.trained for shared in graph.shared_parameters] == [False]


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


@pytest.mark.parametrize("module", [Tied(), Tied(tied=False), Repeated(calls=1)])
def test_without_repetitions_nothing_is_said(module: nn.Module) -> None:
    given = torch.randint(0, 9, (2, 3)) if isinstance(module, Tied) else torch.randn(2, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        captured_from(module, given)


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
