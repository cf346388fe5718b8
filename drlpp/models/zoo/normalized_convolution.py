"""The layer that GoogLeNet and Inception-V3 are made of."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F


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
