"""Weights that keep operators together are named, with what they cost and a way out."""

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


def test_a_tie_says_what_it_costs() -> None:
    with pytest.warns(ModelNote) as caught:
        captured = captured_from(Tied(), torch.randint(0, 9, (2, 3)))
    (note,) = (str(warning.message) for warning in caught)
    assert "output.weight is used more than once, by output and tokens" in note
    assert "5 of 6 operators" in note
    assert "2 are left" in note
    assert "tie_word_embeddings=False" in note
    assert len(captured.graph) == 2


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


@pytest.mark.parametrize("module", [Tied(tied=False), Repeated(calls=1)])
def test_without_ties_nothing_is_said(module: nn.Module) -> None:
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
