"""Data to train on, by name or by import path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

from drlpp.errors import InvalidInput
from drlpp.io.importing import ImportedByName


class Samples(NamedTuple):
    """Inputs of a model and their targets, the samples as first dimension of every tensor."""

    inputs: tuple[Tensor, ...]
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)


class Data(NamedTuple):
    """Samples to train on, and others held out to evaluate on."""

    train: Samples
    test: Samples


class Loaders(NamedTuple):
    """Loaders of minibatches to train on, and of held-out samples or None."""

    train: DataLoader
    held_out: DataLoader | None


def digits(example_inputs: Sequence[Tensor]) -> Data:
    """Return scikit-learn's 1,797 handwritten digits of 8×8 pixels at the model's input size.

    Every fifth sample is held out. Pixels are scaled to mean 0 and standard deviation 1.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise InvalidInput(
            "data 'digits' needs scikit-learn; install it with: pip install 'drlpp[data]'"
        ) from None
    if len(example_inputs) != 1 or example_inputs[0].dim() != 4:
        shapes = [tuple(value.shape) for value in example_inputs]
        raise InvalidInput(
            "data 'digits' fits models with one input of images (batch, channels, height, width); "
            f"this one takes {shapes}"
        )
    _, channels, height, width = example_inputs[0].shape
    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32)
    images = ((images - images.mean()) / images.std()).unsqueeze(1)
    images = F.interpolate(images, (height, width), mode="bilinear", align_corners=False)
    images = images.repeat(1, channels, 1, 1)
    targets = torch.tensor(bunch.target)
    held_out = torch.arange(len(targets)) % 5 == 0
    return Data(
        train=Samples((images[~held_out],), targets[~held_out]),
        test=Samples((images[held_out],), targets[held_out]),
    )


class DataName(ImportedByName):
    """A factory of data, by its import path."""

    what: ClassVar[str] = "data"


DATA: dict[str, Callable[[Sequence[Tensor]], Data]] = {"digits": digits}


def load_data(
    name: str, example_inputs: Sequence[Tensor], example_targets: Tensor | None = None
) -> Data | Loaders:
    """Load data by its name here, or by ``package.module:factory``, which the user has named.

    A factory is called with the model's example inputs and returns a :class:`Data`, a plain
    ``((inputs, targets), (inputs, targets))`` for training and held-out samples, or two loaders.

    Raises:
        InvalidInput: if there is no such data, or it does not fit the model.
    """
    if ":" not in name and name not in DATA:
        raise InvalidInput(
            f"data {name!r} is unknown; there is {', '.join(DATA)}. Data of your own is named "
            "'package.module:factory'"
        )
    own = DataName(name=name).as_named_by_user()
    factory = DATA[name] if name in DATA else own.imported(InvalidInput)
    try:
        train, test = factory(example_inputs)
        if isinstance(train, DataLoader) and isinstance(test, DataLoader | None):
            return Loaders(train, test)
        data = Data(_as_samples(*train), _as_samples(*test))
    except InvalidInput:
        raise
    except Exception as error:
        raise InvalidInput(
            f"data {name!r}: its factory failed with {type(error).__name__}: {error}; called with "
            "the model's example inputs it has to return ((inputs, targets), (inputs, targets)) or "
            "two loaders"
        ) from error
    check_data(name, data, example_inputs, example_targets)
    return data


def check_data(
    name: str,
    data: Data,
    example_inputs: Sequence[Tensor],
    example_targets: Tensor | None = None,
) -> None:
    """Check that data fits a model.

    Args:
        name: for error messages.
        data: to train and evaluate on.
        example_inputs: of one minibatch.
        example_targets: of the same minibatch.

    Raises:
        InvalidInput: if it does not fit.
    """
    for part, samples in data._asdict().items():
        _check_type(name, part, samples)
        _check_fit(name, part, samples, example_inputs, example_targets)


def _as_samples(inputs: Tensor | Sequence[Tensor], targets: Tensor) -> Samples:
    return Samples((inputs,) if isinstance(inputs, Tensor) else tuple(inputs), targets)


def _check_type(name: str, part: str, samples: object) -> None:
    if (
        not isinstance(samples, Samples)
        or not isinstance(samples.inputs, tuple | list)
        or not all(
            isinstance(value, Tensor) and value.dim()
            for value in (*samples.inputs, samples.targets)
        )
    ):
        raise InvalidInput(
            f"data {name!r}: what is given to {part} is no Samples((inputs, ...), targets) with a "
            "tuple of tensors as inputs and a tensor as targets, the samples as first dimension of "
            "each"
        )


def _check_fit(
    name: str,
    part: str,
    samples: Samples,
    example_inputs: Sequence[Tensor],
    example_targets: Tensor | None,
) -> None:
    lengths = [len(value) for value in (*samples.inputs, samples.targets)]
    if len(set(lengths)) > 1:
        raise InvalidInput(
            f"data {name!r}: inputs and targets to {part} have {lengths} samples; they have to be "
            "equally many"
        )
    expected = [(tuple(value.shape[1:]), value.dtype) for value in example_inputs]
    found = [(tuple(value.shape[1:]), value.dtype) for value in samples.inputs]
    if example_targets is not None:
        expected.append((tuple(example_targets.shape[1:]), example_targets.dtype))
        found.append((tuple(samples.targets.shape[1:]), samples.targets.dtype))
    if found != expected:
        raise InvalidInput(
            f"data {name!r}: samples to {part} have shapes and types {found}, "
            f"but the model's inputs and targets have {expected}"
        )
    if len(samples) < len(example_inputs[0]):
        raise InvalidInput(
            f"data {name!r}: {len(samples)} samples to {part} do not fill one minibatch of "
            f"{len(example_inputs[0])}"
        )
