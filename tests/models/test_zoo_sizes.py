"""The zoo's models have the published numbers of parameters, built where they cost no memory."""

import pytest
import torch
from torch import nn

from drlpp.errors import InvalidInput, InvalidModel
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Option
from drlpp.models.zoo import ZOO
from tests.support.models.zoo.tiny_models import tiny


def parameters(name: str, **options: Option) -> int:
    with torch.device("meta"):
        module = ZOO[name](**options).module
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("name", "published"),
    [
        # torchvision's documentation.
        ("alexnet", 61_100_840),
        ("vgg16", 138_357_544),
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("resnet152", 60_192_808),
        ("resnext50", 25_028_904),
        ("resnext101", 88_791_336),
        ("googlenet", 13_004_888),
        ("inception_v3", 27_161_264),
        # Li and Hoefler 2021 (Chimera), table 4.
        ("bert48", 669_790_012),
        # What fairseq reports for transformer_iwslt_de_en without shared embeddings.
        ("transformer", 42_864_640),
        # transformers, with the published configurations.
        ("gpt2", 124_439_808),
    ],
)
def test_published_sizes(name: str, published: int) -> None:
    assert parameters(name) == published


def test_sizes_without_auxiliary_heads() -> None:
    assert parameters("googlenet", auxiliary_heads=False) == 6_624_904
    assert parameters("inception_v3", auxiliary_head=False) == 23_834_568


def test_resnet_for_small_images() -> None:
    # The model of kuangliu/pytorch-cifar, which pipemare trains; it cuts it into 107 weights.
    assert parameters("resnet50", classes=10, small_images=True) == 23_520_842
    module = tiny("resnet50", small_images=True).build().module
    layers = [m for m in module.modules() if next(m.parameters(recurse=False), None) is not None]
    assert len(layers) == 107


def lstm(inputs: int, hidden: int) -> int:
    """Four gates, each with weights for inputs and states, and two biases as torch has them."""
    return 4 * hidden * (inputs + hidden + 2)


@pytest.mark.parametrize(
    ("name", "v", "h", "layers"),
    [("gnmt4", 32_000, 256, 4), ("gnmt8", 32_320, 1024, 4), ("gnmt16", 32_320, 1024, 8)],
)
def test_gnmt_is_as_large_as_its_definition(name: str, v: int, h: int, layers: int) -> None:
    encoder = v * h + 2 * lstm(h, h) + lstm(2 * h, h) + (layers - 2) * lstm(h, h)
    # Linear layers of queries and keys, the vector and its bias, the gain.
    attention = 2 * h * h + 2 * h + 1
    decoder = v * h + lstm(h, h) + (layers - 1) * lstm(2 * h, h) + h * v + v
    assert parameters(name) == encoder + attention + decoder


def test_gnmt8_is_as_large_as_published() -> None:
    # MLPerf's model, 160,671,297, uses one embedding for both languages. PipeDream's profile adds
    # up to 193,765,952: its attention has no bias of 1024 and no gain.
    assert parameters("gnmt8") == 160_671_297 + 32_320 * 1024 == 193_765_952 + 1024 + 1


@pytest.mark.parametrize(("name", "layers"), [("gnmt4", 8), ("gnmt8", 8), ("gnmt16", 16)])
def test_gnmt_has_half_of_its_layers_on_each_side(name: str, layers: int) -> None:
    with torch.device("meta"):
        modules = dict(ZOO[name]().module.named_modules())
    found = {path: layer for path, layer in modules.items() if isinstance(layer, nn.LSTM)}
    assert len(found) == layers
    assert sum(path.startswith("encoder") for path in found) == layers // 2
    assert [path for path, layer in found.items() if layer.bidirectional] == [
        "encoder.bidirectional"
    ]


def test_residual_lstm_is_as_large_as_its_definition() -> None:
    v, h, c, layers = 25_000, 512, 1024, 3
    # W_x, W_h and b of i, f and the candidate, which feed cells, and of o, which feeds outputs;
    # peepholes w_ci, w_cf, W_co; the projection W_p.
    layer = (3 * c + h) * (2 * h + 1) + 2 * c + c * h + c * h
    assert parameters("residual_lstm") == v * h + layers * layer + 2 * h + 2


def test_awd_lm_is_as_large_as_published() -> None:
    # What the authors' code reports for Penn Treebank: 24 million in the paper's table 1.
    lstms = lstm(400, 1150) + lstm(1150, 1150) + lstm(1150, 400)
    assert parameters("awd_lm", tied=True) == 10_000 * 400 + 10_000 + lstms == 24_221_600
    assert parameters("awd_lm") == 24_221_600 + 10_000 * 400


def test_s2vt_is_as_large_as_its_definition() -> None:
    v, f, e, h = 12_594, 4096, 500, 1000
    expected = f * e + e + v * e + lstm(e, h) + lstm(e + h, h) + h * v + v
    assert parameters("s2vt") == expected


def test_bert48_without_a_head_of_its_own_for_words() -> None:
    assert parameters("bert48", tied=True) == 669_790_012 - 30_522 * 1024
    # BERT-Large, with 336 million parameters for its pre-training.
    assert parameters("bert48", tied=True, layers=24) == 336_226_108


@pytest.mark.parametrize(
    ("options", "published"),
    [
        # fairseq's usual recipe for IWSLT14.
        ({"shared_embeddings": "decoder"}, 39_469_056),
        # The paper's base model: 63 million, 65 in its table 3, with a vocabulary of 37,000.
        (
            {
                "inner": 2048,
                "heads": 8,
                "source_vocabulary": 37_000,
                "target_vocabulary": 37_000,
                "shared_embeddings": "all",
            },
            63_082_496,
        ),
    ],
)
def test_transformers_with_shared_embeddings(options: dict[str, Option], published: int) -> None:
    assert parameters("transformer", **options) == published


def test_the_transformer_has_the_weights_that_pipemare_cuts_it_into() -> None:
    with torch.device("meta"):
        module = ZOO["transformer"]().module
    layers = [m for m in module.modules() if next(m.parameters(recurse=False), None) is not None]
    # fairseq keeps the linear layers of queries, keys and values in one weight.
    attentions = 6 + 2 * 6
    assert len(layers) - 2 * attentions == 93


def test_options_that_do_not_go_together_are_refused() -> None:
    shared = ModelReference(name="transformer", options={"shared_embeddings": "all"})
    with pytest.raises(InvalidModel, match="8848 and 6632 tokens cannot share"):
        shared.build()
    with pytest.raises(InvalidInput, match="'both', not none, decoder or all"):
        ZOO["transformer"](shared_embeddings="both")
    with pytest.raises(InvalidModel, match="8 hidden units cannot be divided among 3 heads"):
        tiny("bert48", heads=3).build()
