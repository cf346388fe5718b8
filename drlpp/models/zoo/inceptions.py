"""GoogLeNet and Inception-V3: blocks of branches that read the same, put side by side.

GoogLeNet (Szegedy et al. 2015, arXiv:1409.4842) is the form with batch normalisation, Inception-V3
is of Szegedy et al. 2016 (arXiv:1512.00567). Both have torchvision's names. Auxiliary heads
classify from the middle of both models, and help their first layers to learn::

    GoogLeNet     stem ─ 3a 3b ─ 4a ┬ 4b 4c 4d ┬ 4e ─ 5a 5b ─ logits
                                    └ head 1   └ head 2

    Inception-V3  stem ─ 5b 5c 5d ─ 6a ─ 6b 6c 6d 6e ─┬─ 7a ─ 7b 7c ─ logits
                         35 × 35          17 × 17     └─ head    8 × 8
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.models.task import Task
from drlpp.models.zoo.images import (
    check_input_size,
    classification_task,
    draw_weights,
    scaled,
)


class _Convolution(nn.Module):
    """A convolution without bias, batch normalisation and ReLU."""

    def __init__(self, channels: int, outer: int, kernel_size: Any = 1, **options: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, outer, kernel_size, bias=False, **options)
        self.bn = nn.BatchNorm2d(outer, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)), inplace=True)


class _WithHeads(nn.Module):
    """Layers in a row, a linear layer behind them, and ``heads``, each with the layer it reads.

    Shapes: ``(batch, 3, input size, input size)`` to logits ``(batch, classes)``, and those of
    every head behind them, in training and in evaluation.
    """

    def __init__(
        self,
        layers: Mapping[str, nn.Module],
        heads: Mapping[str, str],
        channels: int,
        classes: int,
        dropout: float,
        deviation: float,
    ) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.row, self.heads = [name for name in layers if name not in heads], heads
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(channels, classes)
        # From a normal, cut at two σ.
        draw = partial(nn.init.trunc_normal_, std=deviation, a=-2 * deviation, b=2 * deviation)
        draw_weights(self, draw, draw)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        x, given = images, {}
        for name in self.row:
            x = given[name] = self.get_submodule(name)(x)
        logits = self.fc(self.dropout(self.avgpool(x).flatten(1)))
        heads = (self.get_submodule(head)(given[read]) for head, read in self.heads.items())
        return logits, *heads


# Channels of a block's four branches, with those of the 1 × 1 convolutions before the larger ones.
_GOOGLENET = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


class _FourBranches(nn.Module):
    """A block of GoogLeNet, with 3 × 3 for 5 × 5 convolutions in the third branch (torchvision)."""

    def __init__(self, channels: int, widths: Sequence[int]) -> None:
        super().__init__()
        one, before_three, three, before_five, five, pooled = widths
        self.branch1 = _Convolution(channels, one)
        self.branch2, self.branch3 = (
            nn.Sequential(_Convolution(channels, before), _Convolution(before, outer, 3, padding=1))
            for before, outer in ((before_three, three), (before_five, five))
        )
        self.branch4 = nn.Sequential(
            nn.MaxPool2d(kernel_size=3, stride=1, padding=1, ceil_mode=True),
            _Convolution(channels, pooled),
        )
        self.channels = one + three + five + pooled

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.children()], 1)


class _GoogLeNetHead(nn.Module):
    """A classifier on 4 × 4 averages."""

    def __init__(self, channels: int, classes: int, width: float) -> None:
        super().__init__()
        reduced, hidden = scaled(128, width), scaled(1024, width)
        self.conv = _Convolution(channels, reduced)
        self.fc1 = nn.Linear(16 * reduced, hidden)
        self.fc2 = nn.Linear(hidden, classes)
        self.dropout = nn.Dropout(0.7)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(F.adaptive_avg_pool2d(x, 4)).flatten(1)
        return self.fc2(self.dropout(F.relu(self.fc1(x), inplace=True)))


def googlenet(
    batch_size: int = 128, input_size: int = 224, classes: int = 1000, width: float = 1.0
) -> Task:
    """Return GoogLeNet on random images of at least 15 pixels.

    0.3 of the loss of each auxiliary head is added.

    Raises:
        InvalidInput: if the images are too small.
    """
    check_input_size("googlenet", input_size, smallest=15)
    first, channels = scaled(64, width), scaled(192, width)
    layers: dict[str, nn.Module] = {
        "conv1": _Convolution(3, first, 7, stride=2, padding=3),
        "maxpool1": nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True),
        "conv2": _Convolution(first, first),
        "conv3": _Convolution(first, channels, 3, padding=1),
        "maxpool2": nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True),
    }
    for name, published in _GOOGLENET.items():
        block = _FourBranches(channels, [scaled(count, width) for count in published])
        layers[f"inception{name}"], channels = block, block.channels
        if name in ("4a", "4d"):
            layers[f"aux{1 if name == '4a' else 2}"] = _GoogLeNetHead(channels, classes, width)
        elif name == "3b":
            layers["maxpool3"] = nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True)
        elif name == "4e":
            layers["maxpool4"] = nn.MaxPool2d(kernel_size=2, stride=2, ceil_mode=True)
    heads = {"aux1": "inception4a", "aux2": "inception4d"}
    module = _WithHeads(layers, heads, channels, classes, dropout=0.2, deviation=0.01)
    return classification_task(module, batch_size, input_size, classes, auxiliary_weight=0.3)


class _Mixed(nn.Module):
    """A block of Inception-V3: convolutions and a pooling, whose channels are put side by side.

    ``convolutions`` has by torchvision's name which one each reads (none for the block's input),
    its channels, its kernel, and its stride if that is 2. What none reads is given away. ``pooled``
    are the channels of the convolution behind an average pooling, 0 for a max pooling without one.
    """

    def __init__(
        self, channels: int, convolutions: Mapping[str, Any], pooled: int, width: float
    ) -> None:
        super().__init__()
        widths = {"": channels}
        for name, (reads, published, kernel, *stride) in convolutions.items():
            high, long = kernel if isinstance(kernel, tuple) else (kernel, kernel)
            widths[name] = scaled(published, width)
            options = {"stride": 2} if stride else {"padding": (high // 2, long // 2)}
            convolution = _Convolution(widths[reads], widths[name], (high, long), **options)
            self.add_module(f"branch{name}", convolution)
        self.reads = {name: row[0] for name, row in convolutions.items()}
        readers = Counter(self.reads.values())
        self.given = [name for name in convolutions if name not in readers]
        # The last of a chain is computed with it, what else is given afterwards.
        self.order = sorted(
            convolutions,
            key=lambda n: n in self.given and (not self.reads[n] or readers[self.reads[n]] > 1),
        )
        self.channels = sum(widths[name] for name in self.given)
        if pooled:
            self.branch_pool = _Convolution(channels, scaled(pooled, width))
        self.channels += scaled(pooled, width) if pooled else channels
        self.pooled = pooled

    def forward(self, x: Tensor) -> Tensor:
        values = {"": x}
        for name in self.order:
            values[name] = self.get_submodule(f"branch{name}")(values[self.reads[name]])
        if self.pooled:
            pooled = self.branch_pool(F.avg_pool2d(x, kernel_size=3, stride=1, padding=1))
        else:
            pooled = F.max_pool2d(x, 3, stride=2)
        return torch.cat([*(values[name] for name in self.given), pooled], 1)


def _chain(name: str, *convolutions: tuple[Any, ...]) -> dict[str, tuple[Any, ...]]:
    """Return convolutions that each read the one before, with numbered names."""
    names = ["", *(f"{name}_{number}" for number in range(1, len(convolutions) + 1))]
    return {
        after: (before, *convolution)
        for before, after, convolution in zip(names, names[1:], convolutions, strict=False)
    }


_FLAT, _TALL = (1, 7), (7, 1)


def _sevens(inner: int) -> dict[str, tuple[Any, ...]]:
    """Return the convolutions of a block on 17 × 17 positions."""
    double = (inner, 1), (inner, _TALL), (inner, _FLAT), (inner, _TALL), (192, _FLAT)
    return {
        "1x1": ("", 192, 1),
        **_chain("7x7", (inner, 1), (inner, _FLAT), (192, _TALL)),
        **_chain("7x7dbl", *double),
    }


_THIRTY_FIVE = {
    "1x1": ("", 64, 1),
    **_chain("5x5", (48, 1), (64, 5)),
    **_chain("3x3dbl", (64, 1), (96, 3), (96, 3)),
}
_EIGHT = {
    "1x1": ("", 320, 1),
    "3x3_1": ("", 384, 1),
    "3x3_2a": ("3x3_1", 384, (1, 3)),
    "3x3_2b": ("3x3_1", 384, (3, 1)),
    "3x3dbl_1": ("", 448, 1),
    "3x3dbl_2": ("3x3dbl_1", 384, 3),
    "3x3dbl_3a": ("3x3dbl_2", 384, (1, 3)),
    "3x3dbl_3b": ("3x3dbl_2", 384, (3, 1)),
}
_SEVEN_A = {
    **_chain("3x3", (192, 1), (320, 3, 2)),
    **_chain("7x7x3", (192, 1), (192, _FLAT), (192, _TALL), (192, 3, 2)),
}
# Every block's convolutions, and the channels behind its pooling.
_INCEPTION_V3: dict[str, tuple[Mapping[str, Any], int]] = {
    "5b": (_THIRTY_FIVE, 32),
    "5c": (_THIRTY_FIVE, 64),
    "5d": (_THIRTY_FIVE, 64),
    "6a": ({"3x3": ("", 384, 3, 2), **_chain("3x3dbl", (64, 1), (96, 3), (96, 3, 2))}, 0),
    "6b": (_sevens(128), 192),
    "6c": (_sevens(160), 192),
    "6d": (_sevens(160), 192),
    "6e": (_sevens(192), 192),
    "7a": (_SEVEN_A, 0),
    "7b": (_EIGHT, 192),
    "7c": (_EIGHT, 192),
}


class _InceptionV3Head(nn.Module):
    """A classifier on 5 × 5 averages of windows, laid evenly on fewer than 17 × 17 positions."""

    def __init__(self, channels: int, input_size: int, classes: int, width: float) -> None:
        super().__init__()
        w128, w768 = scaled(128, width), scaled(768, width)
        side = (input_size - 3) // 2 + 1 - 2  # Conv2d_1a and 2a
        side = (side - 3) // 2 + 1 - 2  # maxpool1 and Conv2d_4a
        for _ in range(2):
            side = (side - 3) // 2 + 1  # maxpool2 and Mixed_6a
        self.pool = nn.AvgPool2d(5, stride=3) if side >= 17 else nn.AdaptiveAvgPool2d(5)
        self.conv0 = _Convolution(channels, w128)
        self.conv1 = _Convolution(w128, w768, 5)
        self.fc = nn.Linear(w768, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(self.conv0(self.pool(x)))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def inception_v3(
    batch_size: int = 64, input_size: int = 299, classes: int = 1000, width: float = 1.0
) -> Task:
    """Return Inception-V3 on random images of at least 75 pixels.

    0.4 of the loss of the auxiliary head is added.

    Raises:
        InvalidInput: if the images are too small.
    """
    check_input_size("inception_v3", input_size, smallest=75)
    w32, w64, w80, channels = (scaled(count, width) for count in (32, 64, 80, 192))
    layers: dict[str, nn.Module] = {
        "Conv2d_1a_3x3": _Convolution(3, w32, 3, stride=2),
        "Conv2d_2a_3x3": _Convolution(w32, w32, 3),
        "Conv2d_2b_3x3": _Convolution(w32, w64, 3, padding=1),
        "maxpool1": nn.MaxPool2d(kernel_size=3, stride=2),
        "Conv2d_3b_1x1": _Convolution(w64, w80),
        "Conv2d_4a_3x3": _Convolution(w80, channels, 3),
        "maxpool2": nn.MaxPool2d(kernel_size=3, stride=2),
    }
    for name, (convolutions, pooled) in _INCEPTION_V3.items():
        block = _Mixed(channels, convolutions, pooled, width)
        layers[f"Mixed_{name}"], channels = block, block.channels
        if name == "6e":
            layers["AuxLogits"] = _InceptionV3Head(channels, input_size, classes, width)
    heads = {"AuxLogits": "Mixed_6e"}
    module = _WithHeads(layers, heads, channels, classes, dropout=0.5, deviation=0.1)
    return classification_task(module, batch_size, input_size, classes, auxiliary_weight=0.4)
