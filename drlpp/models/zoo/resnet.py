"""ResNets and ResNeXts of 50, 101 and 152 layers.

He et al. 2016 (arXiv:1512.03385), with the stride on the 3 × 3 convolution, and Xie et al. 2017
(arXiv:1611.05431), whose 3 × 3 convolutions work on groups of channels of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from drlpp.models.task import Task
from drlpp.models.zoo.classification import classification_task, scaled

# The channels of each of the four parts before the factor of a bottleneck's last convolution.
_PLANES = (64, 128, 256, 512)
_EXPANSION = 4


class Bottleneck(nn.Module):
    """1 × 1, 3 × 3 and 1 × 1 convolutions with a shortcut around them.

    Shapes: ``(batch, channels, height, width)`` to
    ``(batch, outer, height / stride, width / stride)``.
    """

    def __init__(self, channels: int, inner: int, outer: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, inner, kernel_size=1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(
            inner, inner, kernel_size=3, stride=stride, padding=1, groups=groups, bias=False
        )
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


class ResNet(nn.Module):
    """A convolution, four parts of bottlenecks and a linear layer, as in torchvision.

    Args:
        blocks: bottlenecks of each part.
        classes: number of classes.
        width: factor on the channels of every layer; those of a ResNeXt's groups, so that their
            number stays.
        groups: groups of the 3 × 3 convolutions, the cardinality of a ResNeXt.
        group_width: channels of a group in the first part.
        small_images: begin with a 3 × 3 convolution and no pooling, for images of 32 pixels.

    Shapes: ``(batch, 3, input size, input size)`` to ``(batch, classes)``.
    """

    def __init__(
        self,
        blocks: Sequence[int] = (3, 4, 6, 3),
        classes: int = 1000,
        width: float = 1.0,
        groups: int = 1,
        group_width: int = 64,
        small_images: bool = False,
    ) -> None:
        super().__init__()
        channels = scaled(64, width)
        kernel, stride = (3, 1) if small_images else (7, 2)
        self.conv1 = nn.Conv2d(3, channels, kernel, stride, padding=kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool: nn.Module = nn.Identity()
        if not small_images:
            self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        for part, (count, planes) in enumerate(zip(blocks, _PLANES, strict=True)):
            inner = groups * scaled(planes * group_width // 64, width)
            outer = _EXPANSION * scaled(planes, width)
            layers = []
            for block in range(count):
                stride = 2 if part > 0 and block == 0 else 1
                layers.append(Bottleneck(channels, inner, outer, stride, groups))
                channels = outer
            self.add_module(f"layer{part + 1}", nn.Sequential(*layers))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Give the logits of the classes."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        for part in range(len(_PLANES)):
            x = self.get_submodule(f"layer{part + 1}")(x)
        return self.fc(self.avgpool(x).flatten(1))


def resnet50(
    batch_size: int = 64,
    input_size: int = 224,
    classes: int = 1000,
    width: float = 1.0,
    small_images: bool = False,
) -> Task:
    """Return ResNet-50 on random images.

    Args:
        batch_size: images in a minibatch.
        input_size: height and width of the images; any size will do.
        classes: number of classes.
        width: factor on the channels of every layer.
        small_images: begin with a 3 × 3 convolution and no pooling; pipemare (appendix C.1)
            trains this form of the model on CIFAR-10.
    """
    module = ResNet((3, 4, 6, 3), classes, width, small_images=small_images)
    return classification_task(module, batch_size, input_size, classes)


def resnet101(
    batch_size: int = 64, input_size: int = 224, classes: int = 1000, width: float = 1.0
) -> Task:
    """Return ResNet-101 on random images, with the arguments of :func:`resnet50`."""
    module = ResNet((3, 4, 23, 3), classes, width)
    return classification_task(module, batch_size, input_size, classes)


def resnet152(
    batch_size: int = 64,
    input_size: int = 224,
    classes: int = 1000,
    width: float = 1.0,
    small_images: bool = False,
) -> Task:
    """Return ResNet-152 on random images, with the arguments of :func:`resnet50`."""
    module = ResNet((3, 8, 36, 3), classes, width, small_images=small_images)
    return classification_task(module, batch_size, input_size, classes)


def resnext50(
    batch_size: int = 64, input_size: int = 224, classes: int = 1000, width: float = 1.0
) -> Task:
    """Return ResNeXt-50 (32 × 4d) on random images, with the arguments of :func:`resnet50`."""
    module = ResNet((3, 4, 6, 3), classes, width, groups=32, group_width=4)
    return classification_task(module, batch_size, input_size, classes)


def resnext101(
    batch_size: int = 64, input_size: int = 224, classes: int = 1000, width: float = 1.0
) -> Task:
    """Return ResNeXt-101 (32 × 8d) on random images, with the arguments of :func:`resnet50`."""
    module = ResNet((3, 4, 23, 3), classes, width, groups=32, group_width=8)
    return classification_task(module, batch_size, input_size, classes)
