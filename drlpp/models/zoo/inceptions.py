"""GoogLeNet and Inception-V3: blocks of branches that read the same, put side by side.

GoogLeNet (Szegedy et al. 2015, arXiv:1409.4842) is the form with batch normalisation. Auxiliary
heads classify from the middle of both models, and help their first layers to learn::

    GoogLeNet     stem ─ 3a 3b ─ 4a ┬ 4b 4c 4d ┬ 4e ─ 5a 5b ─ logits
                                    └ head 1   └ head 2

    Inception-V3  stem ─ 5b 5c 5d ─ 6a ─ 6b 6c 6d 6e ─┬─ 7a ─ 7b 7c ─ logits
                         35 × 35          17 × 17     └─ head    8 × 8

Inception-V3 is of Szegedy et al. 2016 (arXiv:1512.00567).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.models.task import Task
from drlpp.models.zoo.images import check_input_size, classification_task, scaled


class NormalizedConvolution(nn.Module):
    """A convolution without bias, batch normalisation and ReLU.

    Args:
        channels: that it reads.
        outer: channels that it gives.
        options: of the convolution, such as ``kernel_size``.

    Shapes: ``(batch, channels, height, width)`` to ``(batch, outer, …)`` as the convolution does.
    """

    def __init__(self, channels: int, outer: int, **options: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, outer, bias=False, **options)
        self.bn = nn.BatchNorm2d(outer, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the three in turn."""
        return F.relu(self.bn(self.conv(x)), inplace=True)


def initialise(model: nn.Module, standard_deviation: float) -> None:
    """Draw the weights of all convolutions and linear layers from a normal, cut at two σ."""
    low, high = -2 * standard_deviation, 2 * standard_deviation
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.trunc_normal_(module.weight, std=standard_deviation, a=low, b=high)


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


class FourBranches(nn.Module):
    """A block of GoogLeNet.

    The third branch has 3 × 3 instead of the paper's 5 × 5 convolutions, as in torchvision, so
    that parameters are torchvision's.

    Shapes: ``(batch, channels, height, width)`` to the same height and width.
    """

    def __init__(self, channels: int, widths: Sequence[int]) -> None:
        super().__init__()
        one, before_three, three, before_five, five, pooled = widths
        self.branch1 = NormalizedConvolution(channels, one, kernel_size=1)
        self.branch2, self.branch3 = (
            nn.Sequential(
                NormalizedConvolution(channels, before, kernel_size=1),
                NormalizedConvolution(before, outer, kernel_size=3, padding=1),
            )
            for before, outer in ((before_three, three), (before_five, five))
        )
        self.branch4 = nn.Sequential(
            nn.MaxPool2d(kernel_size=3, stride=1, padding=1, ceil_mode=True),
            NormalizedConvolution(channels, pooled, kernel_size=1),
        )
        self.channels = one + three + five + pooled

    def forward(self, x: Tensor) -> Tensor:
        """Concatenate the branches."""
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


class GoogLeNetHead(nn.Module):
    """A classifier on 4 × 4 averages. Shapes: ``(batch, channels, …)`` to ``(batch, classes)``."""

    def __init__(self, channels: int, classes: int, width: float) -> None:
        super().__init__()
        reduced, hidden = scaled(128, width), scaled(1024, width)
        self.conv = NormalizedConvolution(channels, reduced, kernel_size=1)
        self.fc1 = nn.Linear(16 * reduced, hidden)
        self.fc2 = nn.Linear(hidden, classes)
        self.dropout = nn.Dropout(0.7)

    def forward(self, x: Tensor) -> Tensor:
        """Give the logits of the classes."""
        x = self.conv(F.adaptive_avg_pool2d(x, 4)).flatten(1)
        return self.fc2(self.dropout(F.relu(self.fc1(x), inplace=True)))


class GoogLeNet(nn.Module):
    """Three convolutions, nine blocks of branches and a linear layer, as in torchvision.

    Shapes: ``(batch, 3, input size, input size)`` to logits ``(batch, classes)``; and those of
    two auxiliary heads behind them, in training and in evaluation.
    """

    def __init__(self, classes: int, width: float) -> None:
        super().__init__()
        first, channels = scaled(64, width), scaled(192, width)
        self.conv1 = NormalizedConvolution(3, first, kernel_size=7, stride=2, padding=3)
        self.maxpool1 = nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True)
        self.conv2 = NormalizedConvolution(first, first, kernel_size=1)
        self.conv3 = NormalizedConvolution(first, channels, kernel_size=3, padding=1)
        self.maxpool2 = nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True)
        for name, published in _GOOGLENET.items():
            block = FourBranches(channels, [scaled(count, width) for count in published])
            channels = block.channels
            self.add_module(f"inception{name}", block)
            if name in ("4a", "4d"):
                head = GoogLeNetHead(channels, classes, width)
                self.add_module("aux1" if name == "4a" else "aux2", head)
        self.maxpool3 = nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True)
        self.maxpool4 = nn.MaxPool2d(kernel_size=2, stride=2, ceil_mode=True)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(channels, classes)
        initialise(self, 0.01)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Give the logits of the classes, and those of the auxiliary heads."""
        x = self.maxpool1(self.conv1(images))
        x = self.maxpool2(self.conv3(self.conv2(x)))
        at: dict[str, Tensor] = {}
        for name in _GOOGLENET:
            x = at[name] = self.get_submodule(f"inception{name}")(x)
            if name == "3b":
                x = self.maxpool3(x)
            elif name == "4e":
                x = self.maxpool4(x)
        logits = self.fc(self.dropout(self.avgpool(x).flatten(1)))
        first, second = self.get_submodule("aux1"), self.get_submodule("aux2")
        return logits, first(at["4a"]), second(at["4d"])


def googlenet(
    batch_size: int = 128, input_size: int = 224, classes: int = 1000, width: float = 1.0
) -> Task:
    """Return GoogLeNet on random images of at least 15 pixels.

    0.3 of the loss of each auxiliary head is added.
    """
    check_input_size("googlenet", input_size, smallest=15)
    module = GoogLeNet(classes, width)
    return classification_task(module, batch_size, input_size, classes, auxiliary_weight=0.3)


class Mixed(nn.Module):
    """A block of Inception-V3: convolutions and a pooling, whose channels are put side by side.

    Args:
        channels: that it reads.
        convolutions: by their names in torchvision: which one each reads (none for the block's
            input), its channels, its kernel, and its stride if that is not 1. What none reads is
            given away.
        pooled: channels of the convolution behind an average pooling; 0 for a max pooling of
            stride 2 without one.
        width: factor on all channels.

    Shapes: ``(batch, channels, height, width)`` to the same height and width, or half of them.
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
            convolution = NormalizedConvolution(
                widths[reads], widths[name], kernel_size=(high, long), **options
            )
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
            self.branch_pool = NormalizedConvolution(channels, scaled(pooled, width), kernel_size=1)
        self.channels += scaled(pooled, width) if pooled else channels
        self.pooled = pooled

    def forward(self, x: Tensor) -> Tensor:
        """Concatenate what is given."""
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
        names[number + 1]: (names[number], *convolution)
        for number, convolution in enumerate(convolutions)
    }


_FLAT, _TALL = (1, 7), (7, 1)


def _sevens(inner: int) -> dict[str, tuple[Any, ...]]:
    """Return the convolutions of a block on 17 × 17 positions."""
    return {
        "1x1": ("", 192, 1),
        **_chain("7x7", (inner, 1), (inner, _FLAT), (192, _TALL)),
        **_chain(
            "7x7dbl", (inner, 1), (inner, _TALL), (inner, _FLAT), (inner, _TALL), (192, _FLAT)
        ),
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
    "7a": (
        {
            **_chain("3x3", (192, 1), (320, 3, 2)),
            **_chain("7x7x3", (192, 1), (192, _FLAT), (192, _TALL), (192, 3, 2)),
        },
        0,
    ),
    "7b": (_EIGHT, 192),
    "7c": (_EIGHT, 192),
}


class InceptionV3Head(nn.Module):
    """A classifier on 5 × 5 averages of windows of 5 positions in steps of 3.

    Images of fewer than 299 pixels leave less than the 17 × 17 positions that give 5 × 5 such
    windows; then windows are laid evenly.

    Shapes: ``(batch, channels, side, side)`` to ``(batch, classes)``.
    """

    def __init__(self, channels: int, side: int, classes: int, width: float) -> None:
        super().__init__()
        w128, w768 = scaled(128, width), scaled(768, width)
        self.pool: nn.Module = nn.AvgPool2d(kernel_size=5, stride=3)
        if side < 17:
            self.pool = nn.AdaptiveAvgPool2d(5)
        self.conv0 = NormalizedConvolution(channels, w128, kernel_size=1)
        self.conv1 = NormalizedConvolution(w128, w768, kernel_size=5)
        self.fc = nn.Linear(w768, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Give the logits of the classes."""
        x = self.conv1(self.conv0(self.pool(x)))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class InceptionV3(nn.Module):
    """Five convolutions, eleven blocks of branches and a linear layer, as in torchvision.

    Shapes: ``(batch, 3, input size, input size)`` to logits ``(batch, classes)`` and those of the
    auxiliary head, in training and in evaluation.
    """

    def __init__(self, input_size: int, classes: int, width: float) -> None:
        super().__init__()
        w32, w64, w80, channels = (scaled(count, width) for count in (32, 64, 80, 192))
        self.Conv2d_1a_3x3 = NormalizedConvolution(3, w32, kernel_size=3, stride=2)
        self.Conv2d_2a_3x3 = NormalizedConvolution(w32, w32, kernel_size=3)
        self.Conv2d_2b_3x3 = NormalizedConvolution(w32, w64, kernel_size=3, padding=1)
        self.maxpool1 = nn.MaxPool2d(kernel_size=3, stride=2)
        self.Conv2d_3b_1x1 = NormalizedConvolution(w64, w80, kernel_size=1)
        self.Conv2d_4a_3x3 = NormalizedConvolution(w80, channels, kernel_size=3)
        self.maxpool2 = nn.MaxPool2d(kernel_size=3, stride=2)
        for name, (branches, pooled) in _INCEPTION_V3.items():
            block = Mixed(channels, branches, pooled, width)
            channels = block.channels
            self.add_module(f"Mixed_{name}", block)
            if name == "6e":
                side = (input_size - 3) // 2 + 1 - 2  # Conv2d_1a and 2a
                side = (side - 3) // 2 + 1 - 2  # maxpool1 and Conv2d_4a
                for _ in range(2):
                    side = (side - 3) // 2 + 1  # maxpool2 and Mixed_6a
                self.AuxLogits = InceptionV3Head(channels, side, classes, width)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(channels, classes)
        initialise(self, 0.1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Give the logits of the classes, and those of the auxiliary head."""
        x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(images)))
        x = self.maxpool2(self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(self.maxpool1(x))))
        at: dict[str, Tensor] = {}
        for name in _INCEPTION_V3:
            x = at[name] = self.get_submodule(f"Mixed_{name}")(x)
        logits = self.fc(self.dropout(self.avgpool(x).flatten(1)))
        return logits, self.AuxLogits(at["6e"])


def inception_v3(
    batch_size: int = 64, input_size: int = 299, classes: int = 1000, width: float = 1.0
) -> Task:
    """Return Inception-V3 on random images of at least 75 pixels.

    0.4 of the loss of the auxiliary head is added.
    """
    check_input_size("inception_v3", input_size, smallest=75)
    module = InceptionV3(input_size, classes, width)
    return classification_task(module, batch_size, input_size, classes, auxiliary_weight=0.4)
