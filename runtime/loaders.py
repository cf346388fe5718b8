"""Minibatches from a ``torch.utils.data.DataLoader``: in a repeatable order, and checked."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import Any

import torch
from torch import Generator as TorchGenerator
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from drlpp.data import Samples
from drlpp.errors import DataError, DRLPPError, InvalidInput

Unpack = Callable[[Any], tuple[Any, Tensor]]
"""Makes ``(inputs, targets)`` of what a loader gives; inputs are a tensor or several."""

Loader = DataLoader


def iterate(loader: Loader, seed: int) -> Generator[Any]:
    """What a loader gives, as if ``torch.manual_seed(seed)`` preceded it.

    torch's global generator is lent to the loader while it works, and given back in between, so
    that neither it nor anyone else notices the other.

    Raises:
        DataError: the loader, its dataset or a process of it raised.
    """
    state = torch.Generator().manual_seed(seed).get_state()
    iterator: Iterator[Any] | None = None
    count = 0
    while True:
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(state)
            try:
                if iterator is None:
                    iterator = iter(loader)
                batch = next(iterator)
            except StopIteration:
                return
            except DRLPPError:
                raise
            except Exception as error:
                # A loader's process sends its whole traceback as the text of what it raised.
                reason = str(error).strip().splitlines() or [""]
                raise DataError(
                    f"the loader raised {type(error).__name__} after {count} minibatches: "
                    f"{reason[-1]}"
                ) from error
            state = torch.get_rng_state()
        yield batch
        count += 1


def generators_of(loader: Loader) -> list[TorchGenerator]:
    """Generators of its own that a loader or its samplers draw from, each once."""
    samplers = [
        loader.sampler,
        loader.batch_sampler,
        getattr(loader.batch_sampler, "sampler", None),
    ]
    found = [getattr(owner, "generator", None) for owner in (loader, *samplers)]
    return list({id(g): g for g in found if isinstance(g, TorchGenerator)}.values())


@contextmanager
def undisturbed(loader: Loader) -> Iterator[None]:
    """Around an iteration that the next must not notice."""
    generators = generators_of(loader)
    states = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def known_samples(loader: Loader) -> int | None:
    """How many samples an epoch gives, None where only loading them would tell."""
    batches = loader.batch_sampler
    if isinstance(loader.dataset, IterableDataset) or type(batches) is not BatchSampler:
        return None
    if not isinstance(batches.sampler, Sized):
        return None
    samples = len(batches.sampler)
    return samples - samples % batches.batch_size if batches.drop_last else samples


class Unpacker:
    """Takes batches apart and holds them against the model's example inputs and targets.

    Args:
        unpack: a user's function, or None where a batch is a tuple or list of the inputs and,
            last, the targets.
        inputs: of one minibatch, as captured.
        targets: likewise.
    """

    def __init__(self, unpack: Unpack | None, inputs: Sequence[Tensor], targets: Tensor) -> None:
        self._unpack = unpack
        self._expected = (*inputs, targets)
        self.batch_size = len(inputs[0])

    def __call__(self, batch: object) -> Samples:
        """The samples of a batch, however many.

        Raises:
            InvalidInput: they do not suit the model.
        """
        values = self._taken_apart(batch)
        found = [
            (tuple(value.shape[1:]), str(value.dtype).removeprefix("torch."))
            if isinstance(value, Tensor)
            else type(value).__name__
            for value in values
        ]
        wanted = [
            (tuple(value.shape[1:]), str(value.dtype).removeprefix("torch."))
            for value in self._expected
        ]
        if found != wanted:
            raise InvalidInput(
                f"the loader gives samples of shapes and types {found}, but the model's inputs and "
                f"targets have {wanted}"
            )
        lengths = {len(value) for value in values}
        if len(lengths) > 1:
            raise InvalidInput(
                f"the loader gives a batch whose tensors have {sorted(lengths)} samples; they "
                "have to be equally many"
            )
        return Samples(tuple(values[:-1]), values[-1])

    def _taken_apart(self, batch: object) -> list[Tensor]:
        if self._unpack is None:
            if isinstance(batch, tuple | list):
                return _flat(batch)
            raise InvalidInput(
                f"the loader gives batches of type {type(batch).__name__}; expected (inputs, "
                "targets), or give a function unpack that makes them of a batch"
            )
        try:
            inputs, targets = self._unpack(batch)
        except Exception as error:
            raise InvalidInput(
                f"unpack raised {type(error).__name__}: {error}; it has to make (inputs, targets) "
                f"of a batch, which is a {type(batch).__name__}"
            ) from error
        return [*_flat([inputs]), targets]


def _flat(values: Sequence[Any]) -> list[Any]:
    return [
        leaf
        for value in values
        for leaf in (_flat(value) if isinstance(value, tuple | list) else [value])
    ]
