"""Captured models compute what the model computes, and may be cut between any two operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from drlpp.capturing import module_check
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.errors import InvalidInput, InvalidModel, ModelNote
from drlpp.models.task import Task
from tests.support.models.captured_modules import (
    REFERENCE,
    captured_from,
    check_structure,
    gradients,
    run_in_pieces,
)


class RandomModel(nn.Module):
    """Runs a drawn program: every step appends a value ``(2, 4)`` computed from earlier ones."""

    def __init__(self, program: list[tuple[str, int, int]]) -> None:
        super().__init__()
        self.program = program
        self.tied = nn.Linear(4, 4)
        self.linears = nn.ModuleList(nn.Linear(4, 4) for _ in program)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        values = [x * 1, y * 1]
        for step, (kind, first, second) in enumerate(self.program):
            a, b = values[first % len(values)], values[second % len(values)]
            match kind:
                case "linear":
                    values.append(self.linears[step](a))
                case "tied":
                    values.append(self.tied(a))
                case "add":
                    values.append(a + b)
                case "cat":
                    values.append(torch.cat([a, b], dim=1)[:, 2:6])
                case "relu":
                    values.append(F.relu(a))
                case "view":
                    values.append(a.reshape(4, 2).t().reshape(2, 4))
                case "constant":
                    values.append(a + torch.arange(4).float())
                case "in place":
                    values.append(a.mul_(2))
                case "assign":
                    a[:, 0] = b[:, 1]
                case "count":
                    self.count.add_(1)
        return values[-1], values[len(values) // 2].sum()


KINDS = [
    *("linear", "tied", "add", "cat", "relu"),
    *("view", "constant", "in place", "assign", "count"),
]


@settings(max_examples=8)
@given(
    st.lists(
        st.tuples(st.sampled_from(KINDS), st.integers(0, 9), st.integers(0, 9)),
        min_size=1,
        max_size=10,
    )
)
def test_any_model_computes_the_same_whole_and_in_pieces(
    program: list[tuple[str, int, int]],
) -> None:
    torch.manual_seed(0)
    module = RandomModel(program)
    inputs = torch.randn(2, 4), torch.randn(2, 4)
    # What works in place on what a backward needs has no gradients to compare.
    captured = capture(REFERENCE, Task(module, inputs), check=False)
    check_structure(captured)
    expected = module(*inputs)
    torch.testing.assert_close(captured.module(*inputs), expected)
    torch.testing.assert_close(tuple(run_in_pieces(captured, *inputs)), expected)


class Everything(nn.Module):
    """Layers whose capture has its own difficulties."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.batch_only = nn.BatchNorm2d(4, track_running_stats=False)
        self.instance = nn.InstanceNorm2d(4, track_running_stats=True)
        self.relu = nn.ReLU(inplace=True)
        self.dropout = nn.Dropout(0.5)
        self.lstm = nn.LSTM(4, 4, num_layers=2, dropout=0.5, batch_first=True)
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)
        self.scale = torch.tensor([2.0])
        self.register_buffer("shift", torch.ones(4), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        x = self.dropout(self.relu(self.norm(self.conv(images))))
        x = self.instance(self.batch_only(x))
        x = x.flatten(2).transpose(1, 2) * self.scale + self.shift
        x, _ = self.lstm(x)
        with torch.no_grad():
            centre = x.mean(dim=1, keepdim=True) + torch.tensor([3.0])
        weighted, _ = self.attention(x - centre, x, x, need_weights=False)
        weighted = F.scaled_dot_product_attention(weighted, x, x)
        return F.scaled_dot_product_attention(weighted, x, x, dropout_p=0.5 * self.training)


def test_layers_with_state_and_randomness() -> None:
    torch.manual_seed(0)
    module, images = Everything(), torch.randn(2, 3, 5, 5)
    captured = captured_from(module, images)
    check_structure(captured)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    torch.manual_seed(1)
    expected = module(images)
    wanted = gradients(module, expected.square().mean())
    updated = {name: value.clone() for name, value in module.state_dict().items()}
    module.load_state_dict(state)
    torch.manual_seed(1)
    found = captured.module(images)
    torch.testing.assert_close(found, expected)
    loss = captured.loss(found, captured.task.targets)
    torch.testing.assert_close(gradients(module, loss), wanted)
    torch.testing.assert_close(dict(module.state_dict()), updated)
    assert updated["norm.num_batches_tracked"] == 1
    torch.manual_seed(1)
    module.load_state_dict(state)
    torch.testing.assert_close(run_in_pieces(captured, images), [expected])
    # The graph that evaluates is the model in evaluation, and leaves its statistics alone.
    evaluated = captured.evaluation
    before = {name: value.clone() for name, value in module.state_dict().items()}
    found = evaluated(images)
    torch.testing.assert_close(dict(module.state_dict()), before, rtol=0, atol=0)
    torch.testing.assert_close(found, module.eval()(images))
    names = {node.name for node in evaluated.graph.nodes if node.op == "call_function"}
    assert names <= captured.operator_of.keys()


def test_evaluation_refuses_randomness_that_it_cannot_judge() -> None:
    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.rand_like(x) if self.training else x

    captured = captured_from(Noisy(), torch.randn(2, 3))
    with pytest.raises(InvalidModel, match=r"rand_like.*draws random numbers"):
        captured.evaluation  # noqa: B018 - refused when it is asked for


@dataclass
class ModelOutput:
    """What a library like transformers returns: a registered class with named tensors."""

    logits: Tensor
    hidden: list[Any]


pytree.register_dataclass(ModelOutput)


@pytest.mark.parametrize("kind", [dict, ModelOutput])
def test_the_loss_reads_the_models_own_structure(kind: Callable[..., Any]) -> None:
    class Structured(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x: Tensor, mask: Tensor) -> Any:
            return kind(hidden=[x * mask, None, mask], logits=self.linear(x * mask))

    def read(outputs: Any) -> tuple[Tensor, Tensor]:
        if isinstance(outputs, dict):
            return outputs["logits"], outputs["hidden"][0]
        return outputs.logits, outputs.hidden[0]

    class_weights = torch.tensor([1.0, 2.0, 3.0])

    def loss(outputs: Any, targets: Tensor) -> Tensor:
        logits, hidden = read(outputs)
        return F.cross_entropy(logits, targets, weight=class_weights) + hidden.mean()

    def score(outputs: Any, targets: Tensor) -> Tensor:
        return (read(outputs)[0].argmax(1) == targets).float()

    module = Structured()
    inputs = torch.randn(5, 4), torch.randint(2, (5, 1)).bool()
    targets = torch.randint(3, (5,))
    captured = captured_from(module, *inputs, targets=targets, loss=loss, score=score)
    outputs = module(*inputs)
    flat = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]
    assert len(flat) == 3
    torch.testing.assert_close(captured.loss(*flat, targets), loss(outputs, targets))
    assert captured.score is not None
    torch.testing.assert_close(captured.score(*flat, targets), score(outputs, targets))


def test_microbatches_share_the_weights() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Flatten(), nn.Linear(4, 2))
    targets = torch.randint(2, (6,))
    captured = captured_from(module, torch.randn(6, 4), targets=targets, loss=F.cross_entropy)
    part = captured.microbatch(3)
    assert part.task.batch_size == 2
    assert part.graph.fingerprint == captured.graph.fingerprint
    assert part.graph.operators[-1].outputs[0].shape == (2, 2)
    for found, known in zip(part.module.parameters(), module.parameters(), strict=True):
        assert found is known
    assert part.loss(part.module(*part.task.inputs), part.task.targets).dim() == 0
    for number in (4, 0):
        with pytest.raises(InvalidInput, match=f"6 samples .* {number} equal"):
            captured.microbatch(number)


def test_a_graph_that_follows_the_batch_size_has_no_microbatches() -> None:
    class Unrolled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([row.exp() for row in x])

    captured = captured_from(Unrolled(), torch.randn(4, 2))
    with pytest.raises(InvalidModel, match="another graph for 2 samples than for 4"):
        captured.microbatch(2)


def test_a_model_with_nothing_to_train_is_told() -> None:
    module = nn.Linear(4, 2).requires_grad_(False)
    task = Task(module, (torch.rand(3, 4),), torch.rand(3, 2), F.mse_loss)
    with pytest.warns(ModelNote, match="has no parameter that requires a gradient"):
        capture(task)


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


def _check(captured: CapturedModel, module: nn.Module, loss: Callable[..., Tensor]) -> None:
    """As if ``module`` were what had been captured."""
    object.__setattr__(captured, "task", captured.task._replace(module=module))
    module_check.check_gradients(captured, loss)


class Net(nn.Module):
    """Layers whose gradients tests can get wrong."""

    def __init__(self, change: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 2)
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.dropout(self.norm(self.change(self.first(x))), 0.5, self.training))


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (lambda x: x, None),
        (lambda x: x.detach(), "gradient of first.weight"),
        (lambda x: 0.99 * x + 0.01 * x.detach(), "gradient of first.weight"),
        (lambda x: x + 1e-9, None),
    ],
)
def test_gradients_are_compared(change: Callable[[Tensor], Tensor], differs: str | None) -> None:
    module, other = Net(), Net(change)
    captured = captured_from(module, torch.randn(8, 4), targets=torch.randn(8, 2), loss=F.mse_loss)
    shared = dict(captured.module.named_parameters())
    # The module of the task has to hold the very parameters of the graph.
    for name, weight in shared.items():
        owner, _, attribute = name.rpartition(".")
        setattr(other.get_submodule(owner), attribute, weight)
    if differs is None:
        _check(captured, other, F.mse_loss)
    else:
        with pytest.raises(InvalidModel, match=f"another {differs}"):
            _check(captured, other, F.mse_loss)


def test_a_function_that_comes_into_being_in_the_forward_is_noticed() -> None:
    """No class is known beforehand whose forward could be recorded."""

    def rounded(x: Tensor) -> Tensor:
        class Late(torch.autograd.Function):
            @staticmethod
            def forward(ctx: object, x: Tensor) -> Tensor:
                return x.round()

            @staticmethod
            def backward(ctx: object, gradient: Tensor) -> Tensor:
                return gradient

        return Late.apply(x)

    with pytest.raises(InvalidModel, match=r"gradient of .* than the module itself"):
        captured_from(Net(rounded), torch.randn(8, 4))


def test_nothing_of_the_model_changes() -> None:
    module = Net()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    torch.manual_seed(3)
    captured_from(module, torch.randn(8, 4))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(weight.grad is None for weight in module.parameters())
    drawn = torch.rand(3)
    torch.manual_seed(3)
    torch.randn(8, 4)
    assert torch.equal(torch.rand(3), drawn), "nor does the caller's generator"


class Switching(nn.Module):
    """What it does in evaluation is its own affair."""

    def __init__(self, scale: float, leaves: int = 1) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 2), nn.BatchNorm1d(2)
        self.scale, self.leaves = scale, leaves

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        x = self.norm(self.linear(x)) * (1.0 if self.training else self.scale)
        return (x,) * self.leaves if self.training else x


def test_an_evaluation_that_would_be_another_is_refused() -> None:
    captured = captured_from(Switching(0.5), torch.randn(8, 4))
    with pytest.raises(InvalidModel, match=r"in evaluation mode its module gives other outputs"):
        captured.evaluation  # noqa: B018 - refused when it is asked for
    assert captured.task.module.training
    fewer = captured_from(Switching(0.5, leaves=2), torch.randn(8, 4))
    assert len(fewer.evaluation(torch.randn(8, 4))) == 2
