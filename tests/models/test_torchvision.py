"""The zoo's image classifiers are torchvision's: its weights fit, and give the same logits."""

import json

import pytest
import torch

from drlpp.models.zoo import ZOO
from tests.support.models.zoo.torchvision_logits import (
    CLASSES,
    KEPT,
    NAMES,
    logits,
    names_and_shapes,
)


# Others are made of the same layers.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=pytest.mark.slow if name not in ("resnet50", "googlenet") else (),
        )
        for name in NAMES
    ],
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
