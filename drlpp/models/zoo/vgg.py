"""VGG-16 (Simonyan and Zisserman 2015, configuration D, arXiv:1409.1556)."""

from __future__ import annotations

from torch import Tensor, nn

from drlpp.models.task import Task
from drlpp.models.zoo.classification import check_input_size, classification_task, scaled

# Channels of the convolutions in each block; a max pooling ends the block.
_BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class VGG16(nn.Module):
    """Thirteen convolutions and three linear layers, as in torchvision.

    The first linear layer follows from the input size instead of an average pooling; at 224
    pixels, where both see 7 × 7 positions, the two models are the same.

    Shapes: ``(batch, 3, input size, input size)`` to ``(batch, classes)``.
    """

    def __init__(self, input_size: int = 224, classes: int = 1000, width: float = 1.0) -> None:
        super().__init__()
        check_input_size("vgg16", input_size, smallest=2 ** len(_BLOCKS))
        layers: list[nn.Module] = []
        channels = 3
        for block in _BLOCKS:
            for published in block:
                wider = scaled(published, width)
                layers += [nn.Conv2d(channels, wider, kernel_size=3, padding=1)]
                layers += [nn.ReLU(inplace=True)]
                channels = wider
            layers += [nn.MaxPool2d(kernel_size=2, stride=2)]
        self.features = nn.Sequential(*layers)
        side = input_size // 2 ** len(_BLOCKS)
        hidden = scaled(4096, width)
        self.classifier = nn.Sequential(
            nn.Linear(channels * side * side, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(hidden, classes),
        )
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0, 0.01)
            if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Give the logits of the classes."""
        return self.classifier(self.features(images).flatten(1))


def vgg16(
    batch_size: int = 64, input_size: int = 224, classes: int = 1000, width: float = 1.0
) -> Task:
    """Return VGG-16 on random images.

    Args:
        batch_size: images in a minibatch.
        input_size: height and width of the images, at least 32.
        classes: number of classes.
        width: factor on the channels of every layer.

    Raises:
        InvalidInput: if the images are too small.
    """
    module = VGG16(input_size, classes, width)
    return classification_task(module, batch_size, input_size, classes)
