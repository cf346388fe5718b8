"""The zoo has the published models, and each is captured as what it is."""

from __future__ import annotations

import networkx
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from drlpp.capturing.capture import capture
from drlpp.errors import InvalidInput, InvalidModel
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Option
from drlpp.models.zoo import SMALL, ZOO
from drlpp.models.zoo.awd_lm import regularized_loss
from drlpp.models.zoo.bert import masked_accuracy, pretraining_loss
from drlpp.models.zoo.images import is_correct
from drlpp.models.zoo.language import token_accuracy, token_loss
from drlpp.models.zoo.residual_lstm import ResidualLSTMLayer
from tests.support.models.zoo.captured_zoo import captured_in_float64
from tests.support.models.zoo.tiny_models import GRAPHS, TINY, tiny

ONE_VOCABULARY: dict[str, Option] = {
    "source_vocabulary": 11,
    "target_vocabulary": 11,
    "layers": 1,
}


@pytest.mark.parametrize(
    ("name", "operators", "types"),
    [
        ("alexnet", 20, {"conv2d": 5, "linear": 3, "relu": 7, "max_pool2d": 3, "dropout": 2}),
        ("vgg16", 38, {"conv2d": 13, "linear": 3, "relu": 15, "max_pool2d": 5, "dropout": 2}),
        ("resnet50", 174, {"conv2d": 53, "batch_norm": 53, "relu": 49, "add": 16, "linear": 1}),
        pytest.param(
            "resnext50",
            174,
            {"conv2d": 53, "batch_norm": 53, "relu": 49, "add": 16, "linear": 1},
            marks=pytest.mark.slow,
        ),
        ("googlenet", 212, {"conv2d": 59, "batch_norm": 59, "cat": 9, "linear": 5}),
        pytest.param(
            "inception_v3",
            318,
            {"conv2d": 96, "batch_norm": 96, "cat": 11, "linear": 2},
            marks=pytest.mark.slow,
        ),
        ("residual_lstm", 19, {"embedding": 1, "linear": 5, "stack": 2, "dropout": 1}),
        ("gnmt4", 34, {"lstm": 8, "embedding": 2, "matmul": 2, "softmax": 1, "linear": 3}),
        pytest.param(
            "gnmt16",
            62,
            {"lstm": 16, "embedding": 2, "matmul": 2, "softmax": 1, "linear": 3},
            marks=pytest.mark.slow,
        ),
        ("bert48", 55, {"embedding": 2, "scaled_dot_product_attention": 3, "linear": 22}),
        ("transformer", 81, {"embedding": 2, "scaled_dot_product_attention": 6, "linear": 33}),
        ("awd_lm", 9, {"embedding": 1, "mul": 4, "lstm": 3, "linear": 1}),
        ("s2vt", 11, {"linear": 2, "embedding": 1, "lstm": 2, "cat": 3, "dropout": 3}),
    ],
)
def test_captured_operators(name: str, operators: int, types: dict[str, int]) -> None:
    captured = captured_in_float64(name)
    found = [operator.type for operator in captured.graph.operators]
    assert len(found) == operators
    assert {type_: found.count(type_) for type_ in types} == types
    module = captured.task.module
    wanted = sum(parameter.nbytes for parameter in module.parameters())
    assert captured.graph.parameter_bytes == wanted
    assert captured.state.keys() == module.state_dict().keys()
    assert captured.aliases == {}


@pytest.mark.parametrize("name", GRAPHS)
def test_captured_models_compute_the_same(name: str) -> None:
    captured = captured_in_float64(name)
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
    flat = pytree.tree_leaves(outputs)
    torch.testing.assert_close(gradients(captured.loss(*flat, targets)), wanted)
    evaluated = captured.evaluation(*inputs)
    torch.testing.assert_close(evaluated, module.eval()(*inputs))
    module.train()
    module.load_state_dict(state)
    assert captured.score is not None
    assert captured.score(*pytree.tree_leaves(evaluated), targets).shape == (4,)


@pytest.mark.parametrize("name", GRAPHS)
def test_microbatches_have_the_same_graph(name: str) -> None:
    captured = captured_in_float64(name)
    part = captured.microbatch(2)
    assert part.graph.operators[-1].outputs[0].shape[0] == 2


def test_source_and_target_of_gnmt_meet_at_the_attention() -> None:
    captured = captured_in_float64("gnmt4").graph
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
        ModelReference.named(name, input_size=size, width=0.05).build()


def test_small_options_are_those_of_the_factories() -> None:
    assert SMALL.keys() == ZOO.keys() == TINY.keys()
    for name, options in SMALL.items():
        task = ModelReference.named(name, **options).build()
        assert task.batch_size == options["batch_size"]


def test_scores() -> None:
    logits = torch.eye(3)
    assert is_correct(logits, torch.tensor([0, 2, 2])).tolist() == [1, 0, 1]
    tokens = torch.eye(4)[torch.tensor([[0, 1], [2, 3]])]
    following = torch.tensor([[0, 1], [2, 0]])
    assert token_accuracy(tokens, following).tolist() == [1, 0.5]
    assert token_loss(100 * tokens, following) == pytest.approx(25)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_seed_gives_the_same_model(name: str) -> None:
    first, second, other = (tiny(name).build(seed) for seed in (0, 0, 1))
    torch.testing.assert_close(first.inputs, second.inputs)
    torch.testing.assert_close(first.module.state_dict(), second.module.state_dict())
    weights = zip(first.module.parameters(), other.module.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in weights)


@pytest.mark.parametrize("name", ["alexnet", "vgg16", "resnet50"])
def test_image_models_learn(name: str) -> None:
    task = ModelReference.named(name, **(TINY[name] | {"width": 0.1})).build()
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
        if losses[-1] < losses[0] / 2:
            return
    pytest.fail(f"from {losses[0]} to no less than {min(losses)}")


def test_googlenet_and_inception_add_the_losses_of_auxiliary_heads() -> None:
    for name, weight, heads in [("googlenet", 0.3, 2), ("inception_v3", 0.4, 1)]:
        task = tiny(name).build()
        assert task.loss is not None
        assert task.score is not None
        torch.manual_seed(0)
        outputs = task.module(*task.inputs)
        assert len(outputs) == 1 + heads
        losses = [F.cross_entropy(logits, task.targets).item() for logits in outputs]
        wanted = losses[0] + weight * sum(losses[1:])
        assert task.loss(outputs, task.targets).item() == pytest.approx(wanted)
        score = task.score(outputs, outputs[0].argmax(1))
        assert score.tolist() == [1] * task.batch_size


def test_every_sentence_of_bert_has_as_many_masked_words() -> None:
    task = tiny("bert48", sequence_length=8, batch_size=5).build()
    assert task.targets is not None
    asked = task.targets[:, :-1] != -100
    assert asked.sum(1).tolist() == [1] * 5
    assert torch.equal(asked, task.inputs[0] == 10)
    words = torch.eye(11)[task.targets[:, :-1].clamp(min=0)]
    follows = torch.eye(2)[task.targets[:, -1]]
    outputs = (1000 * words, 1000 * follows)
    assert pretraining_loss(outputs, task.targets).item() == 0
    assert masked_accuracy(outputs, task.targets).tolist() == [1] * 5
    wrong = torch.cat([task.targets[:, :-1], 1 - task.targets[:, -1:]], dim=1)
    assert pretraining_loss(outputs, wrong).item() == 1000


def test_awd_lm_penalises_outputs_and_their_changes() -> None:
    raw = torch.tensor([[[1.0], [3.0], [3.0]]])
    outputs = (100 * torch.eye(3)[None], torch.full((1, 3, 1), 2.0), raw)
    # 2 · 2² of the outputs, and (2² + 0²) / 2 of the changes.
    assert regularized_loss(outputs, torch.arange(3)[None]).item() == pytest.approx(10)


def test_awd_lm_drops_the_same_for_a_whole_sentence() -> None:
    module = tiny("awd_lm", batch_size=8, embedding=40, dropout=1.5).build().module
    dropped = module.get_submodule("last_dropout")(torch.ones(8, 5, 40))
    assert dropped.unique().tolist() == pytest.approx([0, 2.5])
    assert torch.equal(dropped, dropped[:, :1].expand(8, 5, 40))
    assert not torch.equal(dropped[0], dropped[1])


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


def test_the_transformer_sees_no_later_token() -> None:
    module = tiny("transformer").build().module.eval()
    source, target = torch.zeros(1, 5, dtype=torch.long), torch.zeros(1, 5, dtype=torch.long)
    before = module(source, target)
    target[0, 3] = 7
    after = module(source, target)
    torch.testing.assert_close(after[:, :3], before[:, :3])
    assert not torch.allclose(after[:, 3], before[:, 3])


@pytest.mark.parametrize(
    ("name", "options", "words", "projection"),
    [
        ("awd_lm", {"tied": True}, "encoder", "decoder"),
        ("bert48", {"tied": True, "layers": 1}, "embeddings.words", "words"),
        (
            "transformer",
            {"shared_embeddings": "decoder", "layers": 1},
            "target.tokens",
            "projection",
        ),
        ("transformer", {"shared_embeddings": "all", **ONE_VOCABULARY}, "source", "projection"),
    ],
)
def test_tied_embeddings_are_operators_that_share_a_weight(
    name: str, options: dict[str, Option], words: str, projection: str
) -> None:
    task = tiny(name, **options).build()
    graph = capture(tiny(name, **options), task, check=False).graph
    (shared,) = graph.shared_parameters
    readers = [graph.operators[operator].module for operator in shared.operators]
    assert readers[0].startswith(words)
    assert readers[-1].startswith(projection)
    assert graph.parameter_bytes == sum(value.nbytes for value in task.module.parameters())
