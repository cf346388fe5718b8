"""GoogLeNet (Szegedy et al. 2015, arXiv:1409.4842) with batch normalisation.

Two auxiliary heads classify from the middle of the model, and help its first layers to learn::

    images ─ stem ─ 3a 3b ─ 4a ┬ 4b 4c 4d ┬ 4e ─ 5a 5b ─ logits
                               └ head 1   └ head 2
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.models.task import Task
from drlpp.models.zoo.images import check_input_size, classification_task, scaled

# Channels of a block's four branches, with those of the 1 × 1 convolutions before the larger ones.
_BLOCKS = {
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
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.trunc_normal_(
                module.weight,
                std=standard_deviation,
                a=-2 * standard_deviation,
                b=2 * standard_deviation,
            )


class Inception(nn.Module):
    """Four branches that read the same; their channels are put side by side.

    The third branch has 3 × 3 instead of the paper's 5 × 5 convolutions, as in torchvision, so
    that parameters are torchvision's.

    Shapes: ``(batch, channels, height, width)`` to the same height and width.
    """

    def __init__(self, channels: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        one, before_three, three, before_five, five, pooled = widths
        self.branch1 = NormalizedConvolution(channels, one, kernel_size=1)
        self.branch2 = nn.Sequential(
            NormalizedConvolution(channels, before_three, kernel_size=1),
            NormalizedConvolution(before_three, three, kernel_size=3, padding=1),
        )
        self.branch3 = nn.Sequential(
            NormalizedConvolution(channels, before_five, kernel_size=1),
            NormalizedConvolution(before_five, five, kernel_size=3, padding=1),
        )
        self.branch4 = nn.Sequential(
            nn.MaxPool2d(kernel_size=3, stride=1, padding=1, ceil_mode=True),
            NormalizedConvolution(channels, pooled, kernel_size=1),
        )
        self.channels = one + three + five + pooled

    def forward(self, x: Tensor) -> Tensor:
        """Concatenate the branches."""
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


class AuxiliaryHead(nn.Module):
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

    Shapes: ``(batch, 3, input size, input size)`` to logits ``(batch, classes)``; with auxiliary
    heads to three of them, the final ones first, in training and in evaluation.
    """

    def __init__(
        self, classes: int = 1000, width: float = 1.0, auxiliary_heads: bool = True
    ) -> None:
        super().__init__()
        first, second = scaled(64, width), scaled(192, width)
        self.conv1 = NormalizedConvolution(3, first, kernel_size=7, stride=2, padding=3)
        self.maxpool1 = nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True)
        self.conv2 = NormalizedConvolution(first, first, kernel_size=1)
        self.conv3 = NormalizedConvolution(first, second, kernel_size=3, padding=1)
        self.maxpool2 = nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True)
        channels = second
        for name, published in _BLOCKS.items():
            block = Inception(channels, tuple(scaled(count, width) for count in published))
            channels = block.channels
            self.add_module(f"inception{name}", block)
            if auxiliary_heads and name in ("4a", "4d"):
                head = AuxiliaryHead(channels, classes, width)
                self.add_module("aux1" if name == "4a" else "aux2", head)
        self.maxpool3 = nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True)
        self.maxpool4 = nn.MaxPool2d(kernel_size=2, stride=2, ceil_mode=True)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(channels, classes)
        self.auxiliary_heads = auxiliary_heads
        initialise(self, 0.01)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        """Give the logits of the classes, and those of the auxiliary heads."""
        x = self.maxpool1(self.conv1(images))
        x = self.maxpool2(self.conv3(self.conv2(x)))
        at: dict[str, Tensor] = {}
        for name in _BLOCKS:
            x = at[name] = self.get_submodule(f"inception{name}")(x)
            if name == "3b":
                x = self.maxpool3(x)
            elif name == "4e":
                x = self.maxpool4(x)
        logits = self.fc(self.dropout(self.avgpool(x).flatten(1)))
        if not self.auxiliary_heads:
            return logits
        first, second = self.get_submodule("aux1"), self.get_submodule("aux2")
        return logits, first(at["4a"]), second(at["4d"])


def googlenet(
    batch_size: int = 128,
    input_size: int = 224,
    classes: int = 1000,
    width: float = 1.0,
    auxiliary_heads: bool = True,
) -> Task:
    """Return GoogLeNet on random images.

    Args:
        batch_size: images in a minibatch.
        input_size: height and width of the images, at least 15.
        classes: number of classes.
        width: factor on the channels of every layer.
        auxiliary_heads: train with the two heads of the paper; 0.3 of the loss of each is added.

    Raises:
        InvalidInput: if the images are too small.
    """
    check_input_size("googlenet", input_size, smallest=15)
    module = GoogLeNet(classes, width, auxiliary_heads)
    weight = 0.3 if auxiliary_heads else None
    return classification_task(module, batch_size, input_size, classes, weight)
