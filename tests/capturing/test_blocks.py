"""Blocks that repeat are found, and a model with fewer of them is one of fewer layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from drlpp.capturing.blocks import KEPT, shorten
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.costs.profile import OperatorProfile, Profile
from drlpp.models.model_reference import Model, ModelReference
from drlpp.models.task import Option, Task
from tests.support.models.translating import translating
from tests.support.models.zoo.tiny_models import tiny


class Layers(nn.Module):
    """Seven layers, each a linear one and a tanh, between two of other sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(7))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.last(x)


def kinds(model: CapturedModel) -> list[tuple[object, ...]]:
    return [(op.type, op.parameter_bytes, op.outputs) for op in model.graph.operators]


@pytest.mark.parametrize(
    ("model", "layers"),
    [
        (partial(tiny, "gpt2"), 6),
        # An encoder and a decoder, which are shortened each.
        (translating, 6),
    ],
)
def test_a_shortened_model_is_one_of_fewer_layers(model: Callable[..., Model], layers: int) -> None:
    whole = capture(model(layers=layers), check=False)
    short = shorten(whole)
    wanted = capture(model(layers=KEPT), check=False)
    assert kinds(short.captured) == kinds(wanted)
    assert short.captured.graph.edges == wanted.graph.edges
    assert short.captured.graph.outputs == wanted.graph.outputs
    task = short.captured.task
    found = torch.utils._pytree.tree_leaves(short.captured.module(*task.inputs))
    expected = torch.utils._pytree.tree_leaves(wanted.module(*task.inputs))
    assert [value.shape for value in found] == [value.shape for value in expected]
    for op, alike in enumerate(short.alike):
        for measured in alike:
            assert kinds(short.captured)[measured] == kinds(whole)[op]
    assert {op for alike in short.alike for op in alike} == set(range(len(wanted.graph)))


def test_a_profile_has_the_median_of_what_is_equal() -> None:
    whole = capture(Task(Layers(), (torch.randn(6, 3),)))
    short = shorten(whole)
    measured = Profile(
        graph=short.captured.graph,
        device="cpu",
        batch_size=6,
        operators=tuple(
            OperatorProfile(forward_seconds=op, backward_seconds=2 * op, kept_bytes=10 * op)
            for op in range(len(short.captured.graph))
        ),
        fixed_share=0.5,
    )
    profile = measured.of_repeated_blocks(whole.graph, short.alike)
    assert profile.fixed_share == 0.5
    assert profile.timed_operators == len(measured.operators) == 3 + 2 * KEPT
    forward = [operator.forward_seconds for operator in profile.operators]
    # Equal linear layers are operators 2, 4, 6 and 8 of what was measured.
    assert forward == [0, 1, *[5, 6] * 7, 10]
    assert profile.operators[2].kept_bytes == 50


class Unlike(nn.Module):
    """Ten layers of equal shapes, of which some are frozen or have another dilation."""

    def __init__(self, frozen: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(2, 2, 3, padding=d, dilation=d) for d in dilations)
        for layer in self.layers[:frozen]:
            layer.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def unlike(frozen: int = 0, doubling: bool = False) -> Task:
    dilations = tuple(2**layer if doubling else 1 for layer in range(10))
    return Task(Unlike(frozen, dilations), (torch.randn(3, 2, 8),))


@pytest.mark.parametrize(
    ("options", "timed"),
    [
        # The first trained layer gives no gradient to what is ahead of it, as the others do.
        ({}, {*range(2 + 2 * KEPT)}),
        ({"frozen": 2}, {*range(4 + 2 + 2 * KEPT)}),
        ({"doubling": True}, {*range(20)}),
    ],
)
def test_layers_that_cost_otherwise_are_not_equal(
    options: dict[str, Option], timed: set[int]
) -> None:
    whole = capture(ModelReference.named("tests.capturing.test_blocks:unlike", **options))
    short = shorten(whole)
    assert len(short.captured.graph) == len(timed)
    assert {op for alike in short.alike for op in alike} == timed
    for op, alike in enumerate(short.alike):
        layer = whole.graph.operators[op].module
        if layer and whole.graph.operators[op].parameter_bytes:
            trained = whole.task.module.get_submodule(layer).weight.requires_grad
            for measured in alike:
                same = short.captured.graph.operators[measured].module
                assert whole.task.module.get_submodule(same).weight.requires_grad == trained
