"""Stages for a GPU make nothing on the processor; recurrent layers draw torch's numbers."""

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task
from drlpp.placement.placement import Placement
from drlpp.runtime.deploying.stage_cutting import cut_stages, portable
from drlpp.runtime.device.recurrent import ON_GPU
from drlpp.runtime.device.retargeting import move_graph_to_device
from drlpp.runtime.stage.passes.operators import begin_pass
from drlpp.runtime.stage.stages import Argument, Buffer, ModelInput, StageOutput, Weight

GPU = torch.device("cuda", 0)
contiguous = torch.ops.aten.contiguous.default


@pytest.fixture(autouse=True)
def generators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "default_generators", (torch.Generator(),))
    # The method asks CUDA for the device before the tensor, real or fake, has a say.
    monkeypatch.setattr(Tensor, "contiguous", lambda tensor: contiguous(tensor))


class Maker(nn.Module):
    """Tensors from nothing, conversions, constants and random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.ones(4), persistent=False)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(4, 4, dtype=torch.bool).tril()
        position = torch.arange(4, device=x.device)
        scale = torch.tensor([0.5, 1.0, 2.0, 4.0])
        there = torch.zeros(4).to("cpu", torch.float32) + torch.full((4,), 2.0, device="cpu")
        noise = F.dropout(torch.ones(4), 0.5, self.training) + torch.rand(4)
        y = self.linear(x).masked_fill(~mask[position], 0.0) * scale + self.offset
        with torch.autocast("cuda", enabled=False):
            y = y @ torch.eye(4)
        return y + there + noise


def maker() -> CapturedModel:
    return capture(
        ModelReference.named("tests:maker"),
        Task(Maker(), (torch.rand(4, 4),), torch.rand(4), lambda y, t: F.mse_loss(y[0], t)),
    )


def even(captured: CapturedModel, stages: int) -> Placement:
    count = len(captured.graph)
    return Placement.from_assignment(
        [stages * i // count for i in range(count)], tuple(range(stages))
    )


def run_on(device: torch.device, captured: CapturedModel, *, evaluation: bool) -> list[Tensor]:
    """The outputs of the model, as workers load and call its stages, on fake tensors."""
    stages = even(captured, min(3, len(captured.graph)))
    programs = cut_stages(captured, stages, evaluation=evaluation)
    programs = pickle.loads(pickle.dumps(programs))
    for program in programs:
        move_graph_to_device(program.function, device)
    state = captured.state | captured.constants
    sent: dict[StageOutput, Tensor] = {}

    def fake(like: Tensor) -> Tensor:
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=device)

    def value(argument: Argument) -> Tensor:
        match argument:
            case Weight(name) | Buffer(name):
                return fake(state[name])
            case ModelInput(index):
                return fake(captured.task.inputs[index])
            case StageOutput():
                return sent[argument]

    begin_pass(seed=0, part=(0, 0))
    # Autograd cannot work on a GPU that is not there.
    with FakeTensorMode(), torch.no_grad():
        for program in programs:
            outputs = program.function(*(value(argument) for argument in program.arguments))
            for index, output in enumerate(outputs):
                sent[StageOutput(program.stage, index)] = output
        results = [value(result) for result in programs[-1].results]
        if captured.loss is not None:
            loss = pickle.loads(pickle.dumps(portable(captured.loss)))
            move_graph_to_device(loss, device)
            results.append(loss(*results, fake(captured.task.targets)))
    return [*results, *sent.values()]


def test_tensors_from_nothing_are_made_on_the_gpu() -> None:
    for tensor in run_on(GPU, maker(), evaluation=False):
        assert tensor.device == GPU


def test_factories_that_name_no_device_get_one() -> None:
    graph = fx.Graph()
    made = graph.call_function(torch.ops.aten.zeros.default, ([2, 3],))
    like = graph.call_function(torch.ops.aten.zeros_like.default, (made,))
    graph.output((made, like))
    module = fx.GraphModule(nn.Module(), graph)
    move_graph_to_device(module, torch.device("meta"))
    assert all(tensor.is_meta for tensor in module())
    kwargs: list[Any] = [n.kwargs for n in module.graph.nodes if isinstance(n.target, OpOverload)]
    assert kwargs == [{"device": torch.device("meta")}, {}]


def test_on_a_processor_a_graph_stays_as_it_is() -> None:
    captured = maker()
    (program,) = cut_stages(captured, even(captured, 1))
    before = program.function.code
    move_graph_to_device(program.function, torch.device("cpu"))
    assert program.function.code == before
    move_graph_to_device(None, GPU)


aten = torch.ops.aten
LAYERS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn_tanh": nn.RNN}


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", LAYERS)
def test_dropout_between_layers_is_torchs(kind: str, *, bidirectional: bool) -> None:
    """With the same seed the same numbers, although each layer is called alone."""
    module = LAYERS[kind](5, 4, 3, dropout=0.4, bidirectional=bidirectional).double()
    given = torch.rand(6, 2, 5, dtype=torch.double, requires_grad=True)
    zeros = torch.zeros(6 if bidirectional else 3, 2, 4, dtype=torch.double)
    weights = list(module.parameters())
    state = [zeros, zeros] if kind == "lstm" else zeros
    arguments = (given, state, weights, True, 3, 0.4, True, bidirectional, False)
    operator = getattr(aten, kind).input
    torch.manual_seed(1)
    wanted: tuple[Tensor, ...] = operator(*arguments)
    torch.manual_seed(1)
    found: tuple[Tensor, ...] = ON_GPU[operator](*arguments)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    totals = [torch.stack([output.sum() for output in outputs]) for outputs in (found, wanted)]
    for one, other in zip(
        torch.autograd.grad(totals[0].sum(), [given, *weights]),
        torch.autograd.grad(totals[1].sum(), [given, *weights]),
        strict=True,
    ):
        torch.testing.assert_close(one, other)
