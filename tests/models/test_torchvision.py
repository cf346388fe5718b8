"""The zoo's image classifiers are torchvision's: its weights fit, and give the same logits."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("torchvision")

from torchvision import models

from drlpp.models.zoo import ZOO

NAMES = {
    "resnet50": "resnet50",
    "resnet101": "resnet101",
    "resnet152": "resnet152",
    "resnext50": "resnext50_32x4d",
    "resnext101": "resnext101_32x8d",
    "googlenet": "googlenet",
    "inception_v3": "inception_v3",
    "alexnet": "alexnet",
    "vgg16": "vgg16",
}


@pytest.mark.parametrize("name", NAMES)
def test_weights_of_torchvision_give_the_same_logits(name: str) -> None:
    torch.manual_seed(0)
    own = ZOO[name](batch_size=2, classes=10).module
    wanted = getattr(models, NAMES[name])(weights=None, num_classes=10)
    # Random running statistics, or deep models would shrink the logits to nothing.
    for key, buffer in wanted.named_buffers():
        if key.endswith("running_var"):
            buffer.uniform_(0.5, 1.5)
    own.load_state_dict(wanted.state_dict())
    size = 299 if name == "inception_v3" else 224
    images = torch.randn(2, 3, size, size)
    found = own.eval()(images)
    logits: Tensor = found[0] if isinstance(found, tuple) else found
    torch.testing.assert_close(logits, wanted.eval()(images), rtol=1e-3, atol=1e-4)
    if isinstance(found, tuple):
        assert wanted.aux_logits
        # Auxiliary heads of torchvision work in training only.
        head = wanted.aux1 if name == "googlenet" else wanted.AuxLogits
        own_head = own.get_submodule("aux1" if name == "googlenet" else "AuxLogits")
        channels, side = (512, 14) if name == "googlenet" else (768, 17)
        x = torch.randn(2, channels, side, side)
        torch.testing.assert_close(own_head(x), head(x), rtol=1e-3, atol=1e-4)
