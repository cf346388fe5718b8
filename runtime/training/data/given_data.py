"""What a user gives to train on, checked, as the data of a training; and samples in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator

import torch
from torch import Tensor

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import InvalidInput
from drlpp.runtime.deploying.deployment import RunOptions
from drlpp.runtime.loading.loaders import Loader, Unpack
from drlpp.runtime.session.session import ClusterSession
from drlpp.runtime.training.data.training_data import (
    HeldOutCount,
    LoadedData,
    TrainingData,
    bytes_of,
    epoch_seed,
    evaluation_order,
)
from drlpp.specs.batches import chosen, joined, tensors_in
from drlpp.specs.data import Data, Loaders, Samples, fitted, load_data

_MOST_HASHED_BYTES = 64 * 2**20


class SamplesInMemory(TrainingData):
    """Samples that every worker holds, in an order of each epoch's own."""

    def __init__(self, name: str | None, data: Data, batch_size: int, seed: int) -> None:
        self.name = name or "in memory"
        self.fingerprint = None if name else _fingerprint_of(data.train)
        self.batch_size = batch_size
        self.minibatches = len(data.train) // batch_size
        self.held_out_count = HeldOutCount(len(data.test), batch_size)
        self._data = data
        self._seed = seed

    def lend_to(self, session: ClusterSession) -> None:
        """Give the workers training and held-out samples as one set; indices tell them apart."""
        if session.lent is self._data:
            return
        session.use_samples(*joined([self._data.train, self._data.test]))
        session.lent = self._data

    def training(self, epoch: int, begin: int) -> RunOptions:
        """Return a permutation of all training samples; what fills no minibatch is left out."""
        return RunOptions(order=self._order(epoch)[begin:])

    def minibatches_here(self, epoch: int, begin: int) -> Generator[Samples]:
        for indices in self._order(epoch)[begin:]:
            yield chosen(self._data.train, indices)

    def _order(self, epoch: int) -> Tensor:
        """Return the indices of an epoch's samples, (minibatches, batch size)."""
        generator = torch.Generator().manual_seed(epoch_seed(self._seed, epoch))
        shuffled = torch.randperm(len(self._data.train), generator=generator)
        return shuffled[: self.minibatches * self.batch_size].view(-1, self.batch_size)

    def evaluation(self) -> RunOptions:
        return RunOptions(order=self._held_out_order() + len(self._data.train))

    def held_out(self) -> Generator[Samples]:
        for indices in self._held_out_order():
            yield chosen(self._data.test, indices)

    def _held_out_order(self) -> Tensor:
        return evaluation_order(self.held_out_count.samples, self.batch_size)


def _fingerprint_of(samples: Samples) -> str:
    """Hash shapes, types and bytes; of a large tensor, those of samples spread evenly over it."""
    digest = hashlib.sha256()
    for tensor in tensors_in(samples):
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        step = max(1, -(-tensor.nbytes // _MOST_HASHED_BYTES))
        digest.update(bytes_of(tensor.detach()[::step]))
    return digest.hexdigest()[:16]


def training_data(
    data: str | Data | Loader,
    held_out: Loader | None,
    unpack: Unpack | None,
    minibatches: int | None,
    *,
    captured: CapturedModel,
    seed: int,
    note: Callable[[str], None],
) -> TrainingData:
    """Return the data of a training, from what :meth:`PipelineTrainer.fit` is given.

    Raises:
        InvalidInput: anything given does not fit.
    """
    name, task = data if isinstance(data, str) else None, captured.task
    if not isinstance(data, str | Data | Loader):
        raise InvalidInput(
            f"data to train on is a {type(data).__name__}; expected a name, "
            "package.module:factory, drlpp.specs.data.Data, or a torch.utils.data.DataLoader, "
            "such as DataLoader(TensorDataset(inputs, targets), batch_size)"
        )
    if not isinstance(held_out, Loader | None):
        raise InvalidInput(
            f"held_out is a {type(held_out).__name__}; expected a torch.utils.data.DataLoader"
        )
    found: Data | Loaders | Loader
    found = load_data(data, task.inputs, task.targets) if isinstance(data, str) else data
    if isinstance(found, Loader):
        found = Loaders(found, held_out)
    elif held_out is not None:
        raise InvalidInput(
            "held_out belongs to a DataLoader; data by name and in memory have held-out "
            "samples of their own"
        )
    if isinstance(found, Data):
        for option, given in (("unpack", unpack), ("minibatches", minibatches)):
            if given is not None:
                raise InvalidInput(
                    f"{option} belongs to loaders; {name or 'data in memory'} has samples in "
                    "memory, which are taken as they are"
                )
        fitting = fitted(name or "in memory", found, task.inputs, task.targets)
        return SamplesInMemory(name, fitting, task.batch_size, seed)
    return LoadedData(
        name or "DataLoader",
        found,
        unpack,
        captured=captured,
        minibatches=minibatches,
        seed=seed,
        note=note,
    )
