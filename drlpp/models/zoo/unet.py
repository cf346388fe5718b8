"""U-Net (Ronneberger et al. 2015, arXiv:1505.04597): every depth has a branch of its own::

64 ──────────────────── 64
  └ 128 ──────── 128 ┘
      └  …  ──  …  ┘
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.errors import InvalidInput
from drlpp.models.task import Task
from drlpp.models.zoo.classification import scaled

_CHANNELS = (64, 128, 256, 512, 1024)


class TwoConvolutions(nn.Module):
    """Two 3 × 3 convolutions, each with a ReLU.

    Shapes: ``(batch, inputs, height, width)`` to ``(batch, outputs, height, width)``.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Apply both."""
        return F.relu(self.second(F.relu(self.first(x))))


class UNet(nn.Module):
    """Four poolings, four transposed convolutions, and a shortcut at each depth.

    Convolutions are padded, so the answer is as large as the image; the paper's loses its borders.

    Shapes: ``(batch, channels, height, width)``, multiples of 16, to ``(batch, classes, height,
    width)``.
    """

    def __init__(self, channels: int = 1, classes: int = 2, width: float = 1.0) -> None:
        super().__init__()
        sizes = [scaled(published, width) for published in _CHANNELS]
        pairs = list(itertools.pairwise(sizes))
        self.enter = TwoConvolutions(channels, sizes[0])
        self.down = nn.ModuleList(TwoConvolutions(upper, lower) for upper, lower in pairs)
        self.rise = nn.ModuleList(
            nn.ConvTranspose2d(lower, upper, kernel_size=2, stride=2)
            for upper, lower in reversed(pairs)
        )
        self.up = nn.ModuleList(TwoConvolutions(2 * upper, upper) for upper, _ in reversed(pairs))
        self.head = nn.Conv2d(sizes[0], classes, kernel_size=1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Give the logits of the classes of every pixel."""
        x = self.enter(images)
        shortcuts = []
        for block in self.down:
            shortcuts.append(x)
            x = block(F.max_pool2d(x, 2))
        for rise, block, shortcut in zip(self.rise, self.up, reversed(shortcuts), strict=True):
            x = block(torch.cat([shortcut, rise(x)], dim=1))
        return self.head(x)


def pixel_accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the share of the pixels of every sample that are classified rightly, ``(batch,)``."""
    return (logits.argmax(1) == labels).float().mean((1, 2))


def unet(
    batch_size: int = 4,
    input_size: int = 512,
    channels: int = 1,
    classes: int = 2,
    width: float = 1.0,
) -> Task:
    """Return U-Net on random images, of which every pixel belongs to a random class.

    Args:
        batch_size: images in a minibatch.
        input_size: height and width of the images, a multiple of 16.
        channels: of the images.
        classes: of the pixels.
        width: factor on the channels of every layer.

    Raises:
        InvalidInput: if the images cannot be halved four times.
    """
    if input_size % 16:
        raise InvalidInput(f"unet: input_size is {input_size}, which is no multiple of 16")
    images = torch.randn(batch_size, channels, input_size, input_size)
    labels = torch.randint(classes, (batch_size, input_size, input_size))
    module = UNet(channels, classes, width)
    return Task(module, (images,), labels, F.cross_entropy, pixel_accuracy)
