"""Data to train on that workers hold in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from drlpp.runtime.deploying.run_commands import RunOptions
from drlpp.runtime.loading.finite_data import NotFiniteValues, Watch, bad_samples, named_tensors
from drlpp.runtime.loading.held_out import HeldOutCount, evaluation_order
from drlpp.runtime.session.session import ClusterSession
from drlpp.runtime.training.data.training_data import TrainingData, bytes_of, epoch_seed
from drlpp.specs.batches import chosen, joined, tensors_in
from drlpp.specs.data import Data, Samples

_MOST_HASHED_BYTES = 64 * 2**20


class SamplesInMemory(TrainingData):
    """Samples that every worker holds, in an order of each epoch's own.

    Args:
        name: by which the data can be loaded again; None if they have none.
        data: to train and evaluate on.
        batch_size: of the model as it was captured.
        seed: of the order.
    """

    def __init__(self, name: str | None, data: Data, batch_size: int, seed: int) -> None:
        self.name = name or "in memory"
        self.fingerprint = None if name else _fingerprint_of(data.train)
        self.batch_size = batch_size
        self.minibatches = len(data.train) // batch_size
        self.held_out_count = HeldOutCount.of([len(data.test)], batch_size)
        self._data = data
        self._seed = seed

    def lend_to(self, session: ClusterSession) -> None:
        """Give the workers training and held-out samples as one set; indices tell them apart."""
        if session.lent is self._data:
            return
        session.use_samples(*joined([self._data.train, self._data.test]))
        session.lent = self._data

    def training(self, epoch: int, first: int, begin: int) -> RunOptions:
        """Return a permutation of all training samples; what fills no minibatch is left out."""
        return RunOptions(order=self._order(epoch)[first:])

    def minibatches_here(self, epoch: int, begin: int) -> Iterator[Samples]:
        """Yield the same minibatches."""
        for indices in self._order(epoch)[begin:]:
            yield chosen(self._data.train, indices)

    def _order(self, epoch: int) -> Tensor:
        """Return the indices of an epoch's samples, (minibatches, batch size)."""
        generator = torch.Generator().manual_seed(epoch_seed(self._seed, epoch))
        shuffled = torch.randperm(len(self._data.train), generator=generator)
        return shuffled[: self.minibatches * self.batch_size].view(-1, self.batch_size)

    def evaluation(self) -> RunOptions:
        """Return all held-out samples in their order."""
        return RunOptions(order=self._held_out_order() + len(self._data.train))

    def held_out(self) -> Iterator[Samples]:
        """Yield all held-out samples in their order."""
        for indices in self._held_out_order():
            yield chosen(self._data.test, indices)

    def _held_out_order(self) -> Tensor:
        return evaluation_order(self.held_out_samples, self.batch_size)

    def not_finite(self, through: int) -> list[NotFiniteValues]:
        """Find bad values by going through all samples; nobody asks for it without a bad loss."""
        epochs = range(1, through // self.minibatches + 2)
        return _watched(self._data.train, map(self._order, epochs)).found(through)

    def held_out_not_finite(self) -> list[NotFiniteValues]:
        """Find bad values by going through all held-out samples."""
        return _watched(self._data.test, [self._held_out_order()]).found()


def _watched(samples: Samples, orders: Iterable[Tensor]) -> Watch:
    """Watch the minibatches of one epoch after the other; make only those that are bad."""
    watch, number = Watch(), 0
    bad = [which for _, tensor in named_tensors(samples) if (which := bad_samples(tensor)).any()]
    for order in orders:
        if len(watch.found()) == len(bad):
            break
        firsts = {int(row) for which in bad for row in which[order].any(1).nonzero()[:1]}
        for row in sorted(firsts):
            watch.see(number + row, chosen(samples, order[row]), order[row])
        number += len(order)
    return watch


def _fingerprint_of(samples: Samples) -> str:
    """Hash shapes, types and bytes; of a large tensor, those of samples spread evenly over it."""
    digest = hashlib.sha256()
    for tensor in tensors_in(samples):
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        step = max(1, -(-tensor.nbytes // _MOST_HASHED_BYTES))
        digest.update(bytes_of(tensor.detach()[::step]))
    return digest.hexdigest()[:16]
