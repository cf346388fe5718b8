"""Image classifiers with torchvision's names: AlexNet, VGG-16, ResNets and ResNeXts.

AlexNet is the single-column form of "One weird trick" (Krizhevsky 2014, arXiv:1404.5997), VGG-16
configuration D of Simonyan and Zisserman 2015 (arXiv:1409.1556). ResNets (He et al. 2016,
arXiv:1512.03385) have the stride on the 3 × 3 convolution; the 3 × 3 convolutions of ResNeXts (Xie
et al. 2017, arXiv:1611.05431) work on groups of channels of their own.

Shapes: ``(batch, 3, input size, input size)`` to logits ``(batch, classes)``. All models are a row
of layers; a factor ``width`` scales the channels of each.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.errors import InvalidInput, InvalidModel
from drlpp.models.task import Task


def classification_task(module: nn.Module, batch_size: int, input_size: int, classes: int) -> Task:
    """Give ``module`` random images to classify.

    The loss is the cross entropy, the score whether the most likely class is the right one.
    """
    images = torch.randn(batch_size, 3, input_size, input_size)
    labels = torch.randint(classes, (batch_size,))
    return Task(module, (images,), labels, F.cross_entropy, is_correct)


def is_correct(logits: Tensor, labels: Tensor) -> Tensor:
    """Return 1 where the likeliest of ``(batch, classes)`` is the label, else 0: ``(batch,)``."""
    return (logits.argmax(1) == labels).float()


def scaled(channels: int, width: float) -> int:
    """Return the number of channels of a layer in a model that is ``width`` times as wide."""
    return max(1, round(channels * width))


def draw_weights(
    model: nn.Module,
    convolutions: Callable[[Tensor], Any],
    linear: Callable[[Tensor], Any] | None = None,
    *,
    zero_biases: bool = False,
) -> None:
    """Draw the weights of all convolutions, and of linear layers, in the order of the model."""
    for module in model.modules():
        draw = convolutions if isinstance(module, nn.Conv2d) else linear
        if draw is not None and isinstance(module, nn.Conv2d | nn.Linear):
            draw(module.weight)
            if zero_biases and module.bias is not None:
                nn.init.zeros_(module.bias)


_FAN_IN = partial(nn.init.kaiming_normal_, nonlinearity="relu")
_FAN_OUT = partial(nn.init.kaiming_normal_, mode="fan_out", nonlinearity="relu")

# Channels, kernel, stride and padding of a convolution; kernel and stride of a max pooling.
_ALEXNET = (
    *((64, 11, 4, 2), (3, 2), (192, 5, 1, 2), (3, 2)),
    *((384, 3, 1, 1), (256, 3, 1, 1), (256, 3, 1, 1), (3, 2)),
)
_VGG16 = tuple(
    layer
    for channels, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
    for layer in (*[(channels, 3, 1, 1)] * convolutions, (2, 2))
)


def _plain(
    layers: Sequence[tuple[int, ...]],
    input_size: int,
    classes: int,
    width: float,
    *,
    dropout_first: bool,
) -> nn.Module:
    """Return convolutions and poolings in a row, then three linear layers.

    The first linear layer follows from the input size instead of an average pooling. At 224 pixels,
    where both see the same positions, the models are torchvision's.

    Raises:
        InvalidInput: poolings would shrink the images to nothing.
    """
    features: list[nn.Module] = []
    channels, side = 3, input_size
    for layer in layers:
        if len(layer) == 2:
            (kernel, stride), padding = layer, 0
            features.append(nn.MaxPool2d(kernel, stride))
        else:
            published, kernel, stride, padding = layer
            wider = scaled(published, width)
            features += [nn.Conv2d(channels, wider, kernel, stride, padding), nn.ReLU(inplace=True)]
            channels = wider
        side = (side + 2 * padding - kernel) // stride + 1
    if side < 1:
        raise InvalidInput(f"input_size is {input_size}: too small for the model's poolings")
    hidden = scaled(4096, width)
    sizes = pairwise((channels * side * side, hidden, hidden, classes))
    *inner, last = (nn.Linear(*size) for size in sizes)
    classifier: list[nn.Module] = []
    for linear in inner:
        active = linear, nn.ReLU(inplace=True)
        classifier += [nn.Dropout(), *active] if dropout_first else [*active, nn.Dropout()]
    return nn.Sequential(
        OrderedDict(
            features=nn.Sequential(*features),
            flatten=nn.Flatten(),
            classifier=nn.Sequential(*classifier, last),
        )
    )


def alexnet(
    batch_size: int = 64, input_size: int = 224, classes: int = 1000, width: float = 1.0
) -> Task:
    """Return AlexNet on random images of at least 63 pixels."""
    module = _plain(_ALEXNET, input_size, classes, width, dropout_first=True)
    # torch's default shrinks the signal from layer to layer, and nothing is learned for many
    # epochs.
    draw_weights(module, _FAN_IN, _FAN_IN, zero_biases=True)
    return classification_task(module, batch_size, input_size, classes)


def vgg16(
    batch_size: int = 64, input_size: int = 224, classes: int = 1000, width: float = 1.0
) -> Task:
    """Return VGG-16 on random images of at least 32 pixels."""
    module = _plain(_VGG16, input_size, classes, width, dropout_first=False)
    draw_weights(module, _FAN_OUT, partial(nn.init.normal_, std=0.01), zero_biases=True)
    return classification_task(module, batch_size, input_size, classes)


class _Bottleneck(nn.Module):
    """1 × 1, 3 × 3 and 1 × 1 convolutions with a shortcut around them."""

    def __init__(self, channels: int, inner: int, outer: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, inner, kernel_size=1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, padding=1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, outer, kernel_size=1, bias=False)
        self.bn3 = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or channels != outer:
            shortcut = nn.Conv2d(channels, outer, kernel_size=1, stride=stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return self.relu(out + self.downsample(x))


# The channels of each of the four parts before the factor of a bottleneck's last convolution.
_PLANES = (64, 128, 256, 512)
_EXPANSION = 4


def resnet(
    batch_size: int = 64,
    input_size: int = 224,
    classes: int = 1000,
    width: float = 1.0,
    blocks: Sequence[int] = (3, 4, 6, 3),
    groups: int = 1,
    group_width: int = 64,
    small_images: bool = False,
) -> Task:
    """Return a ResNet on random images of any size: a convolution, four parts of bottlenecks.

    Args:
        batch_size, input_size, classes: as everywhere.
        width: factor on the channels of every layer; those of a ResNeXt's groups, so that their
            number stays.
        blocks: bottlenecks of each part.
        groups: groups of the 3 × 3 convolutions, the cardinality of a ResNeXt.
        group_width: channels of a group in the first part.
        small_images: begin with a 3 × 3 convolution and no pooling, for images of 32 pixels, as
            pipemare (appendix C.1) trains it on CIFAR-10.
    """
    channels = scaled(64, width)
    kernel, stride = (3, 1) if small_images else (7, 2)
    layers: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(3, channels, kernel, stride, padding=kernel // 2, bias=False),
        "bn1": nn.BatchNorm2d(channels),
        "relu": nn.ReLU(inplace=True),
    }
    if not small_images:
        layers["maxpool"] = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
    for part, (count, planes) in enumerate(zip(blocks, _PLANES, strict=True)):
        inner = groups * scaled(planes * group_width // 64, width)
        outer = _EXPANSION * scaled(planes, width)
        bottlenecks = []
        for block in range(count):
            stride = 2 if part > 0 and block == 0 else 1
            bottlenecks.append(_Bottleneck(channels, inner, outer, stride, groups))
            channels = outer
        layers[f"layer{part + 1}"] = nn.Sequential(*bottlenecks)
    layers |= {"avgpool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    module = nn.Sequential(OrderedDict(layers, fc=nn.Linear(channels, classes)))
    draw_weights(module, _FAN_OUT)
    return classification_task(module, batch_size, input_size, classes)


def torchvision(
    name: str = "", batch_size: int = 32, input_size: int = 224, classes: int = 1000
) -> Task:
    """Return a classifier of torchvision, by its name there: the factory of that name.

    GoogLeNet and Inception-V3 come without their auxiliary heads.

    Raises:
        InvalidModel: torchvision is missing, or has no such model.
    """
    if not name:
        raise InvalidModel(
            "model torchvision needs the name of one: --model-option name=inception_v3"
        )
    try:
        from torchvision.models import get_model
    except (ImportError, RuntimeError) as error:
        # One that was built for another torch fails with an operator that is not there.
        raise InvalidModel(
            f"model {name} of torchvision needs torchvision as of this torch ({error}); install "
            "it with: pip install torchvision"
        ) from None
    without_heads = {"aux_logits": False, "init_weights": True} if name in _WITH_HEADS else {}
    module = get_model(name, weights=None, num_classes=classes, **without_heads)
    return classification_task(module.train(), batch_size, input_size, classes)


_WITH_HEADS = ("googlenet", "inception_v3")
