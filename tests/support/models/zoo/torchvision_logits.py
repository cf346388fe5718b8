"""What torchvision's classifiers say, kept in ``tests/data/torchvision-logits.json``.

``python -m tests.support.models.zoo.torchvision_logits`` writes the file, and needs torchvision.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import numpy
import torch
from torch import Tensor, nn

KEPT = Path(__file__).parents[3] / "data" / "torchvision-logits.json"
NAMES = {
    "resnet50": "resnet50",
    "resnet101": "resnet101",
    "resnet152": "resnet152",
    "resnext50": "resnext50_32x4d",
    "resnext101": "resnext101_32x8d",
    "alexnet": "alexnet",
    "vgg16": "vgg16",
}
"""Of torchvision, by those of the zoo."""
CLASSES = 10


def names_and_shapes(module: nn.Module) -> str:
    """A digest of all names in the state_dict with their shapes, whatever their order."""
    listed = sorted([name, list(value.shape)] for name, value in module.state_dict().items())
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


@torch.no_grad()
def logits(name: str, module: nn.Module) -> Tensor:
    """What a classifier says of two images, with weights that depend on nothing but their names."""
    state = module.state_dict()
    for key, value in state.items():
        if value.is_floating_point():
            value.copy_(_weights(key, value))
    found = module.eval()(_uniform("images", (2, 3, 224, 224)))
    assert isinstance(found, Tensor)
    return found


def _weights(key: str, value: Tensor) -> Tensor:
    uniform = _uniform(key, tuple(value.shape))
    if key.endswith("running_var"):
        return 1 + uniform / 2
    if value.dim() > 1:
        # Passes a signal on as strong as it was.
        return uniform * math.sqrt(6 / (value.numel() / len(value)))
    # Of a normalisation: less than one, or sums over many blocks would grow beyond all bounds.
    return 0.6 + uniform / 5 if key.endswith("weight") else uniform / 10


def _uniform(key: str, shape: tuple[int, ...]) -> Tensor:
    """Numbers between -1 and 1, the same with every version of numpy and torch."""
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8])
    numbers = numpy.random.default_rng(seed).random(shape)
    numbers *= 2
    numbers -= 1
    return torch.from_numpy(numbers).float()


def _write() -> None:
    import torchvision

    models = {}
    for name, theirs in NAMES.items():
        module = getattr(torchvision.models, theirs)(weights=None, num_classes=CLASSES)
        models[name] = {"names_and_shapes": names_and_shapes(module)}
        models[name]["logits"] = logits(name, module).tolist()
    KEPT.write_text(
        json.dumps({"torchvision": torchvision.__version__, "models": models}, indent=1)
    )


if __name__ == "__main__":
    _write()
