"""AlexNet in the single-column form of "One weird trick" (Krizhevsky 2014, arXiv:1404.5997)."""

from __future__ import annotations

from torch import Tensor, nn

from drlpp.models.task import Task
from drlpp.models.zoo.classification import check_input_size, classification_task, scaled


class AlexNet(nn.Module):
    """Five convolutions and three linear layers, as in torchvision.

    The first linear layer follows from the input size instead of an average pooling; at 224
    pixels, where both see 6 × 6 positions, the two models have the same layers.

    Shapes: ``(batch, 3, input size, input size)`` to ``(batch, classes)``.
    """

    def __init__(self, input_size: int = 224, classes: int = 1000, width: float = 1.0) -> None:
        super().__init__()
        check_input_size("alexnet", input_size, smallest=63)
        channels = [scaled(count, width) for count in (64, 192, 384, 256, 256)]
        hidden = scaled(4096, width)
        self.features = nn.Sequential(
            nn.Conv2d(3, channels[0], kernel_size=11, stride=4, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(channels[0], channels[1], kernel_size=5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(channels[1], channels[2], kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels[2], channels[3], kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels[3], channels[4], kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
        )
        side = (input_size - 7) // 4 + 1
        for _ in range(3):
            side = (side - 3) // 2 + 1
        self.classifier = nn.Sequential(
            nn.Dropout(),
            nn.Linear(channels[4] * side * side, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, classes),
        )
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                # torch's default shrinks the signal from layer to layer, and nothing is learned
                # for many epochs.
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Give the logits of the classes."""
        return self.classifier(self.features(images).flatten(1))


def alexnet(
    batch_size: int = 64, input_size: int = 224, classes: int = 1000, width: float = 1.0
) -> Task:
    """Return AlexNet on random images.

    Args:
        batch_size: images in a minibatch.
        input_size: height and width of the images, at least 63.
        classes: number of classes.
        width: factor on the channels of every layer.

    Raises:
        InvalidInput: if the images are too small.
    """
    module = AlexNet(input_size, classes, width)
    return classification_task(module, batch_size, input_size, classes)
