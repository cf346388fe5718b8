"""The zoo has the published models, as torchvision and transformers compute them, and captures."""

from __future__ import annotations

import json
import re
import sys
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from drlpp.capturing.capture import capture
from drlpp.capturing.module_check import SameDraws
from drlpp.errors import InvalidModel
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Option, Task
from drlpp.models.zoo import SMALL, ZOO
from drlpp.models.zoo.language import gpt2
from drlpp.models.zoo.recurrent import ResidualLSTMLayer
from tests.support.models.captured_modules import run_in_pieces
from tests.support.models.zoo.tiny_models import GRAPHS, TINY, task_in_float64, tiny
from tests.support.models.zoo.torchvision_logits import (
    CLASSES,
    KEPT,
    NAMES,
    logits,
    names_and_shapes,
)


def parameters(name: str, **options: Option) -> int:
    """Counted where they cost no memory."""
    with torch.device("meta"):
        module = ZOO[name](**options).module
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("name", "options", "published"),
    [
        # torchvision's documentation.
        ("alexnet", {}, 61_100_840),
        ("vgg16", {}, 138_357_544),
        ("resnet50", {}, 25_557_032),
        ("resnet101", {}, 44_549_160),
        ("resnet152", {}, 60_192_808),
        ("resnext50", {}, 25_028_904),
        ("resnext101", {}, 88_791_336),
        # The model of kuangliu/pytorch-cifar, which pipemare trains.
        ("resnet50", {"classes": 10, "small_images": True}, 23_520_842),
        # transformers, with the published configuration.
        ("gpt2", {}, 124_439_808),
        # Counted by the papers' equations: gates, attention, peepholes and projections.
        ("gnmt4", {}, 30_525_185),
        # MLPerf's model, 160,671,297, uses one embedding for both languages.
        ("gnmt8", {}, 160_671_297 + 32_320 * 1024),
        ("gnmt16", {}, 277_718_593),
        ("residual_lstm", {}, 26_973_698),
        # What the authors' code reports for Penn Treebank: 24 million in the paper's table 1.
        ("awd_lm", {"tied": True}, 24_221_600),
        ("s2vt", {}, 36_968_094),
    ],
)
def test_published_sizes(name: str, options: dict[str, Option], published: int) -> None:
    assert parameters(name, **options) == published


@pytest.mark.parametrize("name", GRAPHS)
def test_captured_models_compute_the_same_whole_and_in_pieces(name: str) -> None:
    captured = capture(tiny(name), task_in_float64(name))
    module, inputs, targets = captured.task.module, captured.task.inputs, captured.task.targets
    state = {key: value.clone() for key, value in module.state_dict().items()}

    def gradients(loss: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(loss, list(module.parameters()), allow_unused=True)

    torch.manual_seed(1)
    expected = module(*inputs)
    wanted = gradients(captured.task.loss(expected, targets))
    module.load_state_dict(state)
    torch.manual_seed(1)
    outputs = captured.module(*inputs)
    torch.testing.assert_close(outputs, expected)
    flat = pytree.tree_leaves(outputs)
    torch.testing.assert_close(gradients(captured.loss(*flat, targets)), wanted)
    # Branches may draw in another order.
    with SameDraws():
        pieces = run_in_pieces(captured, *inputs)
        torch.testing.assert_close(pieces, pytree.tree_leaves(captured.module(*inputs)))
    evaluated = captured.evaluation(*inputs)
    torch.testing.assert_close(evaluated, module.eval()(*inputs))
    module.train()
    assert captured.score(*pytree.tree_leaves(evaluated), targets).shape == (4,)
    part = captured.microbatch(2)
    assert part.graph.operators[-1].outputs[0].shape[0] == 2


def test_small_options_are_those_of_the_factories() -> None:
    assert SMALL.keys() == ZOO.keys() == TINY.keys()
    for name, options in SMALL.items():
        with torch.device("meta"):
            assert ZOO[name](**options).batch_size == options["batch_size"]


def test_a_seed_gives_the_same_model() -> None:
    first, second, other = (tiny("gnmt4").build(seed) for seed in (0, 0, 1))
    torch.testing.assert_close(first.inputs, second.inputs)
    torch.testing.assert_close(first.module.state_dict(), second.module.state_dict())
    weights = zip(first.module.parameters(), other.module.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in weights)


def test_a_classifier_of_torchvision_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def get_model(name: str, weights: None, num_classes: int, aux_logits: bool = True) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, num_classes)).eval()

    reference = ModelReference.named("torchvision", name="vit_b_16", input_size=8, classes=5)
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    models = ModuleType("torchvision.models")
    monkeypatch.setattr(models, "get_model", get_model, raising=False)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    task = reference.build()
    assert task.module.training
    assert task.score(task.module(*task.inputs), task.targets).shape == (32,)
    assert ModelReference.recorded(str(reference)) == reference
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    with pytest.raises(InvalidModel, match=r"vit_b_16.*pip install torchvision"):
        reference.build()
    with pytest.raises(InvalidModel, match="--model-option name=inception_v3"):
        ModelReference.named("torchvision").build()


def test_a_residual_lstm_layer_is_kim_s_equations() -> None:
    torch.manual_seed(0)
    layer = ResidualLSTMLayer(hidden=3, cells=4).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, 3, 3, dtype=torch.float64)
    weight_x, weight_h = layer.input.weight, layer.recurrent.weight
    bias, rows = layer.input.bias, {"i": slice(4), "f": slice(4, 8), "c": slice(8, 12)}
    rows["o"] = slice(12, 15)
    h, c = torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, 4, dtype=torch.float64)
    wanted = []
    for t in range(3):
        z = {k: x[:, t] @ weight_x[r].T + h @ weight_h[r].T + bias[r] for k, r in rows.items()}
        i = (z["i"] + layer.input_peephole * c).sigmoid()
        f = (z["f"] + layer.forget_peephole * c).sigmoid()
        c = f * c + i * z["c"].tanh()
        o = (z["o"] + c @ layer.output_peephole.weight.T).sigmoid()
        h = o * (c.tanh() @ layer.projection.weight.T + x[:, t])
        wanted.append(h)
    torch.testing.assert_close(layer(x), torch.stack(wanted, 1))


# Others are made of the same layers.
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name != "resnet50" else ()) for name in NAMES],
)
def test_weights_of_torchvision_give_the_same_logits(name: str) -> None:
    kept = json.loads(KEPT.read_text())["models"][name]
    with torch.device("meta"):
        module = ZOO[name](batch_size=2, classes=CLASSES).module
    module.to_empty(device="cpu")
    assert names_and_shapes(module) == kept["names_and_shapes"]
    wanted = torch.tensor(kept["logits"])
    assert wanted.std() > 0.01, "says something"
    torch.testing.assert_close(logits(name, module), wanted, rtol=1e-3, atol=1e-4)


SENTENCES = {"batch_size": 3, "sequence_length": 7, "vocabulary": 31}
ENDS = {"bos_token_id": 0, "eos_token_id": 0}


def gpt2_pair() -> tuple[Task, PreTrainedModel]:
    config = GPT2Config(vocab_size=31, n_positions=9, n_embd=16, n_layer=2, n_head=4, **ENDS)
    task = gpt2(**SENTENCES, hidden=16, layers=2, heads=4, positions=9)
    return task, GPT2LMHeadModel(config)


# From names of transformers to names of the zoo; what is tied has one of its names there.
RENAMED = {
    r"transformer\.wte": "tokens",
    r"transformer\.wpe": "positions",
    r"transformer\.ln_f": "norm",
    r"transformer\.h\.": "blocks.",
    r"ln_1": "attention_norm",
    r"ln_2": "norm",
    r"attn\.c_proj": "attention.output",
    r"attn\.c_attn": "attention.{query,key,value}",
    r"mlp\.c_fc": "inner",
    r"mlp\.c_proj": "output",
}


def weights_for_the_zoo(model: PreTrainedModel) -> dict[str, Tensor]:
    """Every weight under the zoo's name.

    Where transformers has several in one, braces name the parts of a layer.
    """
    renamed = {}
    for name, value in model.named_parameters():
        # Linear layers of GPT-2 have their weights the other way round.
        turned = value.T if re.search(r"\.c_.*weight", name) else value
        for theirs, ours in RENAMED.items():
            name = re.sub(theirs, ours, name)
        begin, _, rest = name.partition("{")
        parts, _, end = rest.partition("}")
        names = parts.split(",")
        for part, piece in zip(names, turned.chunk(len(names)), strict=True):
            renamed[begin + part + end] = piece
    return renamed


def test_logits_are_those_of_transformers() -> None:
    torch.manual_seed(0)
    task, model = gpt2_pair()
    module = task.module.double().eval()
    for value in model.parameters():
        torch.nn.init.normal_(value, std=0.3)
    model.double().eval()
    missing, unexpected = module.load_state_dict(weights_for_the_zoo(model), strict=False)
    assert not unexpected
    assert set(missing) <= {"head.weight"}
    wanted = model(input_ids=task.inputs[0]).logits
    found = module(*task.inputs)
    torch.testing.assert_close(found, wanted)
    assert found.std() > 0.1
