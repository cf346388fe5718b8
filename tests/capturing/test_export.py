"""An exported graph reads the module's own weights by name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from drlpp.errors import ModelNote
from tests.support.models.captured_modules import captured_from


class Model(nn.Module):
    """Weights that are tied or unused, buffers of both kinds, constants, a region."""

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
        self.learned = torch.ones(4, requires_grad=True)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            self.kept += 1
            scale = x.sum(0) * self.passing
        y = self.tied(self.deep(self.first(x)) * scale) + torch.tensor([1.0, 2.0, 3.0, 4.0])
        return {"y": y.add_(self.literal) * self.learned, "x": x}


def test_weights_and_buffers_are_the_modules_own() -> None:
    module, x = Model(), torch.randn(3, 4)
    with pytest.warns() as warned:
        captured = captured_from(module, x)
    (note,) = warned
    assert note.category is ModelNote
    assert "the attribute learned requires gradients and is no parameter" in str(note.message)
    own = dict(module.named_parameters(remove_duplicate=False))
    for name, weight in captured.module.named_parameters():
        assert weight is own[name]
    kept = captured.module.get_buffer("kept")
    assert kept is module.kept
    assert {"passing", "literal", "learned"} < captured.constants.keys()
    assert not any(value.requires_grad for value in captured.constants.values())
    before = kept.clone()
    torch.testing.assert_close(captured.module(x)["x"], x)
    torch.testing.assert_close(module.kept, before + 1)
