"""Data to train on, by name or by import path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

from drlpp.errors import InvalidInput
from drlpp.io.importing import find
from drlpp.specs.batches import (
    Batch,
    arranged_like,
    named_tensors,
    tensors_in,
    with_plain_containers,
)


class Samples(NamedTuple):
    """Inputs of a model and their targets, the samples as first dimension of every tensor.

    Both are structured as the example inputs and targets of the model's task.
    """

    inputs: Batch
    targets: Batch

    def __len__(self) -> int:
        return len(tensors_in(self.inputs)[0])


class Data(NamedTuple):
    """Samples to train on, and others held out to evaluate on."""

    train: Samples
    test: Samples


class Loaders(NamedTuple):
    """Loaders of minibatches to train on, and of held-out samples or None."""

    train: DataLoader
    held_out: DataLoader | None


def digits(example_inputs: Batch) -> Data:
    """Return scikit-learn's 1,797 handwritten digits of 8×8 pixels at the model's input size.

    Every fifth sample is held out. Pixels are scaled to mean 0 and standard deviation 1.
    """
    examples = tensors_in(example_inputs)
    if not _are_images(examples):
        shapes = [tuple(value.shape) for value in examples]
        raise InvalidInput(
            "data 'digits' fits models with one input of images (batch, channels, height, width); "
            f"this one takes {shapes}; name data of your own: --data package.module:factory"
        )
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise InvalidInput(
            "data 'digits' needs scikit-learn; install it with: pip install 'drlpp[data]'"
        ) from None
    _, channels, height, width = examples[0].shape
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


def fitting_data(example_inputs: Batch, example_targets: Batch) -> str:
    """Return what to name as a model's data: ``digits`` if it classifies images, else one's own."""
    targets = tensors_in(example_targets)
    classifies = len(targets) == 1 and targets[0].dim() == 1 and targets[0].dtype == torch.long
    fits = classifies and _are_images(tensors_in(example_inputs))
    return "digits" if fits else OWN_DATA


OWN_DATA = "package.module:factory"
"""What stands for a user's own data in a command."""


def _are_images(examples: Sequence[Tensor]) -> bool:
    return len(examples) == 1 and examples[0].dim() == 4


DATA: dict[str, Callable[[Batch], Data]] = {"digits": digits}


def load_data(name: str, example_inputs: Batch, example_targets: Batch) -> Data | Loaders:
    """Load data by its name here, or by ``package.module:factory``, which the user has named.

    A factory is called with the model's example inputs and returns a :class:`Data`, a plain
    ``((inputs, targets), (inputs, targets))`` for training and held-out samples, or two loaders.
    The targets of a model that has none are None.

    Raises:
        InvalidInput: if there is no such data, or it does not fit the model.
    """
    if ":" not in name and name not in DATA:
        raise InvalidInput(
            f"data {name!r} is unknown; there is {', '.join(DATA)}. Data of your own is named "
            "'package.module:factory'"
        )
    factory = DATA[name] if name in DATA else find(name, "data", InvalidInput)
    found: Any = factory
    try:
        found = factory(example_inputs)
        train, test = found
        if isinstance(train, DataLoader) and isinstance(test, DataLoader | None):
            return Loaders(train, test)
        data = Data(_as_samples(*train), _as_samples(*test))
    except InvalidInput:
        raise
    except (Exception, SystemExit) as error:
        raised = f"raised {type(error).__name__}: {error}"
        did = raised if found is factory else f"returned {type(found).__name__}"
        raise InvalidInput(
            f"data {name!r}: its factory {did}; called with the model's example inputs it has to "
            "return ((inputs, targets), (inputs, targets)), the second held out, or two loaders"
        ) from error
    return fitted(name, data, example_inputs, example_targets)


def fitted(name: str, data: Data, example_inputs: Batch, example_targets: Batch) -> Data:
    """Return data in the structure in which a model takes it, checked.

    Args:
        name: for error messages.
        data: to train and evaluate on.
        example_inputs, example_targets: of one minibatch.

    Raises:
        InvalidInput: if it does not fit.
    """
    examples, parts = Samples(example_inputs, example_targets), []
    for part, given in data._asdict().items():
        what = f"data {name!r}: what is given to {part}"
        if not isinstance(given, Samples):
            raise InvalidInput(
                f"{what} is a {type(given).__name__}; expected Samples((inputs, ...), targets)"
            )
        samples = fitting(given, examples, what)
        if len(samples) < len(examples):
            raise InvalidInput(
                f"{what} has {len(samples)} samples; a minibatch takes {len(examples)}"
            )
        parts.append(samples)
    return Data(*parts)


def fitting(samples: Samples, examples: Samples, where: str, hint: str = "") -> Samples:
    """Return samples in the structure of examples; a model without targets gets empty ones.

    Raises:
        InvalidInput: structure, shapes or types are others, or the tensors have not equally many
            samples; it begins with ``where``, and ends with ``hint`` where sizes alone differ.
    """
    inputs = arranged_like(examples.inputs, samples.inputs, f"{where}: inputs")
    targets = samples.targets
    if targets is None and has_no_targets(examples.targets):
        first = tensors_in(inputs)[0]
        targets = torch.empty(len(first) if first.dim() else 0, 0)
    found = Samples(inputs, arranged_like(examples.targets, targets, f"{where}: targets"))
    pairs = list(zip(tensors_in(found), tensors_in(examples), strict=True))
    if any(_kind_of(one) != _kind_of(example) for one, example in pairs):
        of_sizes = all((a.dim(), a.dtype) == (b.dim(), b.dtype) for a, b in pairs)
        raise InvalidInput(
            f"{where} has {_kinds_text(found)}, but the model takes {_kinds_text(examples)}"
            f"{hint if of_sizes else ''}"
        )
    lengths = {len(value) for value, _ in pairs}
    if len(lengths) > 1:
        raise InvalidInput(
            f"{where} has tensors of {sorted(lengths)} samples; they have to be equally many"
        )
    return found


def has_no_targets(example_targets: Batch) -> bool:
    """Return whether a captured model has empty targets, which stand for none."""
    return isinstance(example_targets, Tensor) and not example_targets.numel()


def _as_samples(inputs: Batch, targets: Batch | None = None) -> Samples:
    inputs = with_plain_containers(inputs)
    inputs = tuple(inputs) if isinstance(inputs, list) else inputs
    return Samples((inputs,) if isinstance(inputs, Tensor) else inputs, targets)


def _kinds_text(samples: Samples) -> str:
    """Return the tensors by name, each with the shape and type of a sample."""
    return ", ".join(
        f"{name} {_kind_of(tensor)}"
        for part, batch in samples._asdict().items()
        for name, tensor in named_tensors(part, batch)
    )


def _kind_of(tensor: Tensor) -> str:
    if not tensor.dim():
        return "a single number"
    sparse = "" if tensor.layout == torch.strided else f" {tensor.layout}"
    return f"{tuple(tensor.shape[1:])} {tensor.dtype}{sparse}".replace("torch.", "")
