"""The zoo has the published models, and each is captured as what it is."""

from __future__ import annotations

from typing import Any

import networkx
import pytest
import torch
from torch import Tensor, nn

from drlpp.capture import capture, capture_microbatch, evaluation_graph
from drlpp.errors import InvalidInput, InvalidModel
from drlpp.task import ModelReference
from drlpp.zoo import SMALL, ZOO
from drlpp.zoo.alexnet import AlexNet
from drlpp.zoo.classification import is_correct
from drlpp.zoo.gnmt import GNMT, token_accuracy, token_loss
from drlpp.zoo.resnet import ResNet50
from drlpp.zoo.vgg import VGG16

TINY: dict[str, dict[str, Any]] = {
    "alexnet": {"batch_size": 4, "input_size": 63, "classes": 10, "width": 0.05},
    "vgg16": {"batch_size": 4, "input_size": 32, "classes": 10, "width": 0.05},
    "resnet50": {"batch_size": 4, "input_size": 33, "classes": 10, "width": 0.05},
    "gnmt4": {"batch_size": 4, "sequence_length": 5, "vocabulary": 11, "hidden": 8},
}


def reference(name: str) -> ModelReference:
    return ModelReference(name=name, options=TINY[name])


@pytest.mark.parametrize(
    ("model", "parameters"),
    [(AlexNet, 61_100_840), (VGG16, 138_357_544), (ResNet50, 25_557_032)],
)
def test_published_sizes(model: type[nn.Module], parameters: int) -> None:
    with torch.device("meta"):
        module = model()
    assert sum(parameter.numel() for parameter in module.parameters()) == parameters


def test_gnmt_has_four_layers_of_256_units_on_each_side() -> None:
    with torch.device("meta"):
        modules = dict(GNMT().named_modules())
    layers = {name: layer for name, layer in modules.items() if isinstance(layer, nn.LSTM)}
    assert len(layers) == 8
    assert {layer.hidden_size for layer in layers.values()} == {256}
    assert [name for name, layer in layers.items() if layer.bidirectional] == [
        "encoder.bidirectional"
    ]


@pytest.mark.parametrize(
    ("name", "operators", "types"),
    [
        ("alexnet", 20, {"conv2d": 5, "linear": 3, "relu": 7, "max_pool2d": 3, "dropout": 2}),
        ("vgg16", 38, {"conv2d": 13, "linear": 3, "relu": 15, "max_pool2d": 5, "dropout": 2}),
        ("resnet50", 174, {"conv2d": 53, "batch_norm": 53, "relu": 49, "add": 16, "linear": 1}),
        ("gnmt4", 34, {"lstm": 8, "embedding": 2, "matmul": 2, "softmax": 1, "linear": 3}),
    ],
)
def test_captured_operators(name: str, operators: int, types: dict[str, int]) -> None:
    captured = capture(reference(name))
    found = [operator.type for operator in captured.graph.operators]
    assert len(found) == operators
    assert {type_: found.count(type_) for type_ in types} == types
    module = captured.task.module
    wanted = sum(parameter.nbytes for parameter in module.parameters())
    assert captured.graph.parameter_bytes == wanted
    assert captured.state.keys() == module.state_dict().keys()
    assert captured.aliases == {}


@pytest.mark.parametrize("name", ZOO)
def test_captured_models_compute_the_same(name: str) -> None:
    captured = capture(reference(name))
    module, inputs, targets = captured.task.module, captured.task.inputs, captured.task.targets
    assert targets is not None
    assert captured.task.loss is not None
    state = {key: value.clone() for key, value in module.state_dict().items()}

    def gradients(loss: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(loss, list(module.parameters()))

    torch.manual_seed(1)
    expected = module(*inputs)
    wanted = gradients(captured.task.loss(expected, targets))
    module.load_state_dict(state)
    torch.manual_seed(1)
    outputs = captured.module(*inputs)
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(gradients(captured.loss(outputs, targets)), wanted)
    evaluated = evaluation_graph(captured.module)(*inputs)
    torch.testing.assert_close(evaluated, module.eval()(*inputs))
    assert captured.score is not None
    assert captured.score(evaluated, targets).shape == (4,)


@pytest.mark.parametrize("name", ZOO)
def test_microbatches_have_the_same_graph(name: str) -> None:
    captured = capture(reference(name))
    part = capture_microbatch(captured, 2)
    assert part.graph.operators[-1].outputs[0].shape[0] == 2


def test_source_and_target_of_gnmt_meet_at_the_attention() -> None:
    captured = capture(reference("gnmt4")).graph
    graph = captured.to_networkx()
    names = [operator.name for operator in captured.operators]
    source, target = names.index("encoder.embedding.embedding"), names.index("decoder.first.lstm")
    assert source not in networkx.ancestors(graph, target)
    meeting = networkx.descendants(graph, source) & networkx.descendants(graph, target)
    assert names[min(meeting)] == "decoder.attention.add"


@pytest.mark.parametrize(("name", "size"), [("alexnet", 62), ("vgg16", 31)])
def test_images_that_pooling_would_shrink_to_nothing_are_refused(name: str, size: int) -> None:
    with pytest.raises(InvalidInput, match=f"input_size is {size}.* at least {size + 1}"):
        ZOO[name](input_size=size, width=0.05)
    with pytest.raises(InvalidModel, match=f"at least {size + 1}"):
        ModelReference(name=name, options={"input_size": size, "width": 0.05}).build()


def test_small_options_are_those_of_the_factories() -> None:
    assert SMALL.keys() == ZOO.keys()
    for name, options in SMALL.items():
        task = ModelReference(name=name, options=options).build()
        assert task.batch_size == options["batch_size"]


def test_scores() -> None:
    logits = torch.eye(3)
    assert is_correct(logits, torch.tensor([0, 2, 2])).tolist() == [1, 0, 1]
    tokens = torch.eye(4)[torch.tensor([[0, 1], [2, 3]])]
    following = torch.tensor([[0, 1], [2, 0]])
    assert token_accuracy(tokens, following).tolist() == [1, 0.5]
    assert token_loss(100 * tokens, following) == pytest.approx(25)


@pytest.mark.parametrize("name", ZOO)
def test_a_seed_gives_the_same_model(name: str) -> None:
    first, second, other = (reference(name).build(seed) for seed in (0, 0, 1))
    torch.testing.assert_close(first.inputs, second.inputs)
    torch.testing.assert_close(first.module.state_dict(), second.module.state_dict())
    weights = zip(first.module.parameters(), other.module.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in weights)


@pytest.mark.parametrize("name", ["alexnet", "vgg16", "resnet50"])
def test_image_models_learn(name: str) -> None:
    task = ModelReference(name=name, options=TINY[name] | {"width": 0.1}).build()
    assert task.loss is not None
    assert task.targets is not None
    task.module.train()
    optimizer = torch.optim.Adam(task.module.parameters(), lr=3e-3)
    losses = []
    for _ in range(100):
        optimizer.zero_grad()
        loss = task.loss(task.module(*task.inputs), task.targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert min(losses) < losses[0] / 2
