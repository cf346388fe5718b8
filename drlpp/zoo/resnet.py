"""ResNet-50 (He et al. 2016, arXiv:1512.03385), with the stride on the 3 × 3 convolution."""

from __future__ import annotations

from torch import Tensor, nn

from drlpp.task import Task
from drlpp.zoo.classification import classification_task, scaled

# Blocks and inner channels of each of the four groups.
_GROUPS = ((3, 64), (4, 128), (6, 256), (3, 512))
_EXPANSION = 4


class Bottleneck(nn.Module):
    """1 × 1, 3 × 3 and 1 × 1 convolutions beside a shortcut.

    Shapes: ``(batch, channels, height, width)`` to
    ``(batch, 4 · inner, height / stride, width / stride)``.
    """

    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        outer = _EXPANSION * inner
        self.conv1 = nn.Conv2d(channels, inner, kernel_size=1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, outer, kernel_size=1, bias=False)
        self.bn3 = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or channels != outer:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, outer, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(outer),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Add what the convolutions give to the shortcut."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return self.relu(out + self.downsample(x))


class ResNet50(nn.Module):
    """A 7 × 7 convolution, sixteen bottlenecks and a linear layer, as in torchvision.

    Shapes: ``(batch, 3, input size, input size)`` to ``(batch, classes)``.
    """

    def __init__(self, classes: int = 1000, width: float = 1.0) -> None:
        super().__init__()
        channels = scaled(64, width)
        self.conv1 = nn.Conv2d(3, channels, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        for group, (blocks, published) in enumerate(_GROUPS):
            inner = scaled(published, width)
            layers = []
            for block in range(blocks):
                stride = 2 if group > 0 and block == 0 else 1
                layers.append(Bottleneck(channels, inner, stride))
                channels = _EXPANSION * inner
            self.add_module(f"layer{group + 1}", nn.Sequential(*layers))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Give the logits of the classes."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        for group in range(len(_GROUPS)):
            x = self.get_submodule(f"layer{group + 1}")(x)
        return self.fc(self.avgpool(x).flatten(1))


def resnet50(
    batch_size: int = 64, input_size: int = 224, classes: int = 1000, width: float = 1.0
) -> Task:
    """ResNet-50 on random images.

    Args:
        batch_size: images in a minibatch.
        input_size: height and width of the images; any size will do.
        classes: number of classes.
        width: factor on the channels of every layer.
    """
    return classification_task(ResNet50(classes, width), batch_size, input_size, classes)
