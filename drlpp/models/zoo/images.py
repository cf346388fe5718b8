"""Image classifiers with torchvision's names: AlexNet, VGG-16, ResNets, ResNeXts and Inceptions.

AlexNet is the single-column form of "One weird trick" (Krizhevsky 2014, arXiv:1404.5997), VGG-16
configuration D of Simonyan and Zisserman 2015 (arXiv:1409.1556). ResNets (He et al. 2016,
arXiv:1512.03385) have the stride on the 3 × 3 convolution; the 3 × 3 convolutions of ResNeXts (Xie
et al. 2017, arXiv:1611.05431) work on groups of channels of their own. GoogLeNet (Szegedy et al.
2015, arXiv:1409.4842) and Inception-V3 (Szegedy et al. 2016, arXiv:1512.00567) are in
``inceptions.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.errors import InvalidInput
from drlpp.models.task import Task


def classification_task(
    module: nn.Module,
    batch_size: int,
    input_size: int,
    classes: int,
    auxiliary_weight: float | None = None,
) -> Task:
    """Give ``module`` random images ``(batch size, 3, input size, input size)`` to classify.

    The loss is the cross entropy, the score whether the most likely class is the right one.

    Args:
        module: gives logits ``(batch size, classes)``.
        batch_size: images in a minibatch.
        input_size: height and width of the images.
        classes: number of classes.
        auxiliary_weight: for a module that gives a tuple of logits, those of auxiliary heads
            after the final ones: the factor on the cross entropy of each auxiliary head.
    """
    images = torch.randn(batch_size, 3, input_size, input_size)
    labels = torch.randint(classes, (batch_size,))
    if auxiliary_weight is None:
        return Task(module, (images,), labels, F.cross_entropy, is_correct)

    def loss(outputs: Sequence[Tensor], labels: Tensor) -> Tensor:
        final, *auxiliary = (F.cross_entropy(logits, labels) for logits in outputs)
        return final + auxiliary_weight * torch.stack(auxiliary).sum()

    def score(outputs: Sequence[Tensor], labels: Tensor) -> Tensor:
        return is_correct(outputs[0], labels)

    return Task(module, (images,), labels, loss, score)


def is_correct(logits: Tensor, labels: Tensor) -> Tensor:
    """Return 1 for every sample whose most likely class is its label, 0 for the others.

    Shapes: logits ``(batch, classes)`` and labels ``(batch,)`` to ``(batch,)``.
    """
    return (logits.argmax(1) == labels).float()


def scaled(channels: int, width: float) -> int:
    """Return the number of channels of a layer in a model that is ``width`` times as wide."""
    return max(1, round(channels * width))


def check_input_size(model: str, input_size: int, smallest: int) -> None:
    """Refuse images that the model's pooling would shrink to nothing.

    Raises:
        InvalidInput: naming the smallest size.
    """
    if input_size < smallest:
        raise InvalidInput(
            f"{model}: input_size is {input_size}, but its layers need at least {smallest}"
        )


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


class PlainClassifier(nn.Module):
    """Convolutions and poolings in a row, then three linear layers: AlexNet and VGG.

    The first linear layer follows from the input size instead of an average pooling. At 224 pixels,
    where both see the same positions, the models are torchvision's.

    Args:
        layers: convolutions, each with a ReLU, and poolings, as in the tables above.
        dropout_first: whether dropout is ahead of linear layers (AlexNet) or behind them (VGG).
        input_size: height and width of the images.
        classes: number of classes.
        width: factor on the channels of every layer.

    Shapes: ``(batch, 3, input size, input size)`` to ``(batch, classes)``.
    """

    def __init__(
        self,
        layers: Sequence[tuple[int, ...]],
        dropout_first: bool,
        input_size: int,
        classes: int,
        width: float,
    ) -> None:
        super().__init__()
        features: list[nn.Module] = []
        channels, side = 3, input_size
        for layer in layers:
            if len(layer) == 2:
                (kernel, stride), padding = layer, 0
                features.append(nn.MaxPool2d(kernel, stride))
            else:
                published, kernel, stride, padding = layer
                wider = scaled(published, width)
                features.append(nn.Conv2d(channels, wider, kernel, stride, padding))
                features.append(nn.ReLU(inplace=True))
                channels = wider
            side = (side + 2 * padding - kernel) // stride + 1
        self.features = nn.Sequential(*features)
        hidden = scaled(4096, width)
        first, second = nn.Linear(channels * side * side, hidden), nn.Linear(hidden, hidden)
        parts: list[nn.Module] = [first, nn.ReLU(inplace=True), nn.Dropout()]
        parts += [second, nn.ReLU(inplace=True), nn.Dropout()]
        if dropout_first:
            parts = [nn.Dropout(), *parts[:2], nn.Dropout(), *parts[3:5]]
        self.classifier = nn.Sequential(*parts, nn.Linear(hidden, classes))

    def forward(self, images: Tensor) -> Tensor:
        """Give the logits of the classes."""
        return self.classifier(self.features(images).flatten(1))


def alexnet(
    batch_size: int = 64, input_size: int = 224, classes: int = 1000, width: float = 1.0
) -> Task:
    """Return AlexNet on random images of at least 63 pixels.

    Raises:
        InvalidInput: if the images are too small.
    """
    check_input_size("alexnet", input_size, smallest=63)
    module = PlainClassifier(_ALEXNET, True, input_size, classes, width)
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            # torch's default shrinks the signal from layer to layer, and nothing is learned for
            # many epochs.
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            _without_bias(layer)
    return classification_task(module, batch_size, input_size, classes)


def vgg16(
    batch_size: int = 64, input_size: int = 224, classes: int = 1000, width: float = 1.0
) -> Task:
    """Return VGG-16 on random images of at least 32 pixels."""
    check_input_size("vgg16", input_size, smallest=32)
    module = PlainClassifier(_VGG16, False, input_size, classes, width)
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            _without_bias(layer)
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, 0, 0.01)
            _without_bias(layer)
    return classification_task(module, batch_size, input_size, classes)


def _without_bias(layer: nn.Conv2d | nn.Linear) -> None:
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


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
        blocks: Sequence[int],
        classes: int,
        width: float,
        groups: int,
        group_width: int,
        small_images: bool,
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
    """Return a :class:`ResNet` on random images of any size.

    pipemare (appendix C.1) trains the form with ``small_images`` on CIFAR-10.
    """
    module = ResNet(blocks, classes, width, groups, group_width, small_images)
    return classification_task(module, batch_size, input_size, classes)
