"""Inception-V3 (Szegedy et al. 2016, arXiv:1512.00567).

Blocks of branches, whose channels are put side by side, on three resolutions::

    images ─ stem ─ 5b 5c 5d ─ 6a ─ 6b 6c 6d 6e ─┬─ 7a ─ 7b 7c ─ logits
                    35 × 35          17 × 17     └─ head    8 × 8
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.models.task import Task
from drlpp.models.zoo.googlenet import NormalizedConvolution, initialise
from drlpp.models.zoo.images import check_input_size, classification_task, scaled

# Long convolutions that keep height and width: 1 × 7 and 7 × 1, 1 × 3 and 3 × 1.
_flat7 = partial(NormalizedConvolution, kernel_size=(1, 7), padding=(0, 3))
_tall7 = partial(NormalizedConvolution, kernel_size=(7, 1), padding=(3, 0))
_flat3 = partial(NormalizedConvolution, kernel_size=(1, 3), padding=(0, 1))
_tall3 = partial(NormalizedConvolution, kernel_size=(3, 1), padding=(1, 0))
_point = partial(NormalizedConvolution, kernel_size=1)


def _averaged(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, kernel_size=3, stride=1, padding=1)


class BlockA(nn.Module):
    """Branches of 1 × 1, 5 × 5, two 3 × 3 convolutions, and pooling. Keeps height and width."""

    def __init__(self, channels: int, pooled: int, width: float) -> None:
        super().__init__()
        w48, w64, w96 = (scaled(count, width) for count in (48, 64, 96))
        self.branch1x1 = _point(channels, w64)
        self.branch5x5_1 = _point(channels, w48)
        self.branch5x5_2 = NormalizedConvolution(w48, w64, kernel_size=5, padding=2)
        self.branch3x3dbl_1 = _point(channels, w64)
        self.branch3x3dbl_2 = NormalizedConvolution(w64, w96, kernel_size=3, padding=1)
        self.branch3x3dbl_3 = NormalizedConvolution(w96, w96, kernel_size=3, padding=1)
        self.branch_pool = _point(channels, pooled)
        self.channels = 2 * w64 + w96 + pooled

    def forward(self, x: Tensor) -> Tensor:
        """Concatenate the branches."""
        five = self.branch5x5_2(self.branch5x5_1(x))
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat([self.branch1x1(x), five, double, self.branch_pool(_averaged(x))], 1)


class BlockB(nn.Module):
    """Branches of stride 2: one 3 × 3, two 3 × 3 convolutions, and pooling."""

    def __init__(self, channels: int, width: float) -> None:
        super().__init__()
        w64, w96, w384 = (scaled(count, width) for count in (64, 96, 384))
        self.branch3x3 = NormalizedConvolution(channels, w384, kernel_size=3, stride=2)
        self.branch3x3dbl_1 = _point(channels, w64)
        self.branch3x3dbl_2 = NormalizedConvolution(w64, w96, kernel_size=3, padding=1)
        self.branch3x3dbl_3 = NormalizedConvolution(w96, w96, kernel_size=3, stride=2)
        self.channels = w384 + w96 + channels

    def forward(self, x: Tensor) -> Tensor:
        """Concatenate the branches."""
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat([self.branch3x3(x), double, F.max_pool2d(x, 3, stride=2)], 1)


class BlockC(nn.Module):
    """Branches of 1 × 1, one and two pairs of 1 × 7 and 7 × 1 convolutions, and pooling."""

    def __init__(self, channels: int, inner: int, width: float) -> None:
        super().__init__()
        inner, w192 = scaled(inner, width), scaled(192, width)
        self.branch1x1 = _point(channels, w192)
        self.branch7x7_1 = _point(channels, inner)
        self.branch7x7_2 = _flat7(inner, inner)
        self.branch7x7_3 = _tall7(inner, w192)
        self.branch7x7dbl_1 = _point(channels, inner)
        self.branch7x7dbl_2 = _tall7(inner, inner)
        self.branch7x7dbl_3 = _flat7(inner, inner)
        self.branch7x7dbl_4 = _tall7(inner, inner)
        self.branch7x7dbl_5 = _flat7(inner, w192)
        self.branch_pool = _point(channels, w192)
        self.channels = 4 * w192

    def forward(self, x: Tensor) -> Tensor:
        """Concatenate the branches."""
        seven = self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(x)))
        double = self.branch7x7dbl_3(self.branch7x7dbl_2(self.branch7x7dbl_1(x)))
        double = self.branch7x7dbl_5(self.branch7x7dbl_4(double))
        return torch.cat([self.branch1x1(x), seven, double, self.branch_pool(_averaged(x))], 1)


class BlockD(nn.Module):
    """Branches of stride 2: a 3 × 3, a pair of 1 × 7 and 7 × 1 before a 3 × 3, and pooling."""

    def __init__(self, channels: int, width: float) -> None:
        super().__init__()
        w192, w320 = scaled(192, width), scaled(320, width)
        self.branch3x3_1 = _point(channels, w192)
        self.branch3x3_2 = NormalizedConvolution(w192, w320, kernel_size=3, stride=2)
        self.branch7x7x3_1 = _point(channels, w192)
        self.branch7x7x3_2 = _flat7(w192, w192)
        self.branch7x7x3_3 = _tall7(w192, w192)
        self.branch7x7x3_4 = NormalizedConvolution(w192, w192, kernel_size=3, stride=2)
        self.channels = w320 + w192 + channels

    def forward(self, x: Tensor) -> Tensor:
        """Concatenate the branches."""
        three = self.branch3x3_2(self.branch3x3_1(x))
        seven = self.branch7x7x3_3(self.branch7x7x3_2(self.branch7x7x3_1(x)))
        return torch.cat([three, self.branch7x7x3_4(seven), F.max_pool2d(x, 3, stride=2)], 1)


class BlockE(nn.Module):
    """Branches of 1 × 1, two that divide into 1 × 3 and 3 × 1 convolutions, and pooling."""

    def __init__(self, channels: int, width: float) -> None:
        super().__init__()
        w192, w320, w384, w448 = (scaled(count, width) for count in (192, 320, 384, 448))
        self.branch1x1 = _point(channels, w320)
        self.branch3x3_1 = _point(channels, w384)
        self.branch3x3_2a = _flat3(w384, w384)
        self.branch3x3_2b = _tall3(w384, w384)
        self.branch3x3dbl_1 = _point(channels, w448)
        self.branch3x3dbl_2 = NormalizedConvolution(w448, w384, kernel_size=3, padding=1)
        self.branch3x3dbl_3a = _flat3(w384, w384)
        self.branch3x3dbl_3b = _tall3(w384, w384)
        self.branch_pool = _point(channels, w192)
        self.channels = w320 + 4 * w384 + w192

    def forward(self, x: Tensor) -> Tensor:
        """Concatenate the branches."""
        three = self.branch3x3_1(x)
        double = self.branch3x3dbl_2(self.branch3x3dbl_1(x))
        return torch.cat(
            [
                self.branch1x1(x),
                self.branch3x3_2a(three),
                self.branch3x3_2b(three),
                self.branch3x3dbl_3a(double),
                self.branch3x3dbl_3b(double),
                self.branch_pool(_averaged(x)),
            ],
            1,
        )


class AuxiliaryHead(nn.Module):
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
        self.conv0 = _point(channels, w128)
        self.conv1 = NormalizedConvolution(w128, w768, kernel_size=5)
        self.fc = nn.Linear(w768, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Give the logits of the classes."""
        x = self.conv1(self.conv0(self.pool(x)))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class InceptionV3(nn.Module):
    """Five convolutions, eleven blocks of branches and a linear layer, as in torchvision.

    Shapes: ``(batch, 3, input size, input size)`` to logits ``(batch, classes)``; with the
    auxiliary head to two of them, the final ones first, in training and in evaluation.
    """

    def __init__(
        self,
        input_size: int = 299,
        classes: int = 1000,
        width: float = 1.0,
        auxiliary_head: bool = True,
    ) -> None:
        super().__init__()
        check_input_size("inception_v3", input_size, smallest=75)
        w32, w64, w80, w192 = (scaled(count, width) for count in (32, 64, 80, 192))
        self.Conv2d_1a_3x3 = NormalizedConvolution(3, w32, kernel_size=3, stride=2)
        self.Conv2d_2a_3x3 = NormalizedConvolution(w32, w32, kernel_size=3)
        self.Conv2d_2b_3x3 = NormalizedConvolution(w32, w64, kernel_size=3, padding=1)
        self.maxpool1 = nn.MaxPool2d(kernel_size=3, stride=2)
        self.Conv2d_3b_1x1 = _point(w64, w80)
        self.Conv2d_4a_3x3 = NormalizedConvolution(w80, w192, kernel_size=3)
        self.maxpool2 = nn.MaxPool2d(kernel_size=3, stride=2)
        self.Mixed_5b = BlockA(w192, scaled(32, width), width)
        self.Mixed_5c = BlockA(self.Mixed_5b.channels, w64, width)
        self.Mixed_5d = BlockA(self.Mixed_5c.channels, w64, width)
        self.Mixed_6a = BlockB(self.Mixed_5d.channels, width)
        self.Mixed_6b = BlockC(self.Mixed_6a.channels, 128, width)
        self.Mixed_6c = BlockC(self.Mixed_6b.channels, 160, width)
        self.Mixed_6d = BlockC(self.Mixed_6c.channels, 160, width)
        self.Mixed_6e = BlockC(self.Mixed_6d.channels, 192, width)
        self.AuxLogits: AuxiliaryHead | None = None
        if auxiliary_head:
            side = (input_size - 3) // 2 + 1 - 2  # Conv2d_1a and 2a
            side = (side - 3) // 2 + 1 - 2  # maxpool1 and Conv2d_4a
            for _ in range(2):
                side = (side - 3) // 2 + 1  # maxpool2 and Mixed_6a
            self.AuxLogits = AuxiliaryHead(self.Mixed_6e.channels, side, classes, width)
        self.Mixed_7a = BlockD(self.Mixed_6e.channels, width)
        self.Mixed_7b = BlockE(self.Mixed_7a.channels, width)
        self.Mixed_7c = BlockE(self.Mixed_7b.channels, width)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(self.Mixed_7c.channels, classes)
        initialise(self, 0.1)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Give the logits of the classes, and those of the auxiliary head."""
        x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(images)))
        x = self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(self.maxpool1(x)))
        x = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(self.maxpool2(x))))
        x = self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(x)))
        middle = self.Mixed_6e(self.Mixed_6d(x))
        x = self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(middle)))
        logits = self.fc(self.dropout(self.avgpool(x).flatten(1)))
        return logits if self.AuxLogits is None else (logits, self.AuxLogits(middle))


def inception_v3(
    batch_size: int = 64,
    input_size: int = 299,
    classes: int = 1000,
    width: float = 1.0,
    auxiliary_head: bool = True,
) -> Task:
    """Return Inception-V3 on random images.

    Args:
        batch_size: images in a minibatch.
        input_size: height and width of the images, at least 75.
        classes: number of classes.
        width: factor on the channels of every layer.
        auxiliary_head: train with the head of the paper; 0.4 of its loss is added.

    Raises:
        InvalidInput: if the images are too small.
    """
    module = InceptionV3(input_size, classes, width, auxiliary_head)
    weight = 0.4 if auxiliary_head else None
    return classification_task(module, batch_size, input_size, classes, weight)
