"""What is trained on and evaluated on: samples in memory, or loaders that are read as one goes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from itertools import islice

import torch
from torch import Tensor

from drlpp.data import Data, Loaders, Samples
from drlpp.errors import InvalidInput
from drlpp.runtime.held_out import evaluation_order
from drlpp.runtime.loaders import (
    Loader,
    Unpacker,
    generators_of,
    iterate,
    known_samples,
    undisturbed,
)
from drlpp.runtime.run_commands import RunOptions
from drlpp.runtime.session import ClusterSession


class TrainingData(ABC):
    """The data of a training.

    Attributes:
        name: for the record of a run.
        batch_size: of the model as it was captured.
        minibatches: of an epoch.
        held_out_samples: to evaluate on; 0 for none.
    """

    name: str
    batch_size: int
    minibatches: int
    held_out_samples: int

    @property
    def held_out_minibatches(self) -> int:
        """Minibatches of an evaluation."""
        return len(evaluation_order(self.held_out_samples, self.batch_size))

    def lend_to(self, session: ClusterSession) -> None:
        """Give the workers what they hold all the time."""

    @abstractmethod
    def training(self, epoch: int, first: int, begin: int) -> RunOptions:
        """The minibatches of an epoch, counted from 1.

        Args:
            epoch: which.
            first: the minibatch of the epoch that is number 0 of the run.
            begin: the minibatch of the epoch that the run begins with, or goes on with.
        """

    @abstractmethod
    def evaluation(self) -> RunOptions:
        """The held-out minibatches."""

    @abstractmethod
    def held_out(self) -> Iterator[Samples]:
        """The same, for this process."""

    def state(self) -> list[Tensor]:
        """What a checkpoint needs to go on with the same samples."""
        return []

    def load_state(self, state: list[Tensor]) -> None:
        """Take over what :meth:`state` gave."""


def epoch_seed(seed: int, epoch: int) -> int:
    """Of the order of samples; epoch 0 stands for what comes before, and for held-out data."""
    return seed * 1_000_003 + epoch


class SamplesInMemory(TrainingData):
    """Samples that every worker holds, in an order of each epoch's own."""

    def __init__(self, name: str, data: Data, batch_size: int, seed: int) -> None:
        self.name = name
        self.batch_size = batch_size
        self.minibatches = len(data.train) // batch_size
        self.held_out_samples = len(data.test)
        self._data = data
        self._seed = seed

    def lend_to(self, session: ClusterSession) -> None:
        """Training and held-out samples are one set for the workers, told apart by indices."""
        pairs = zip(self._data.train.inputs, self._data.test.inputs, strict=True)
        session.use_samples(
            [torch.cat(pair) for pair in pairs],
            torch.cat([self._data.train.targets, self._data.test.targets]),
        )

    def training(self, epoch: int, first: int, begin: int) -> RunOptions:
        """A permutation of all training samples; what makes no whole minibatch is left out."""
        generator = torch.Generator().manual_seed(epoch_seed(self._seed, epoch))
        shuffled = torch.randperm(len(self._data.train), generator=generator)
        order = shuffled[: self.minibatches * self.batch_size].view(-1, self.batch_size)
        return RunOptions(order=order[first:])

    def evaluation(self) -> RunOptions:
        """All held-out samples in their order."""
        return RunOptions(order=self._held_out_order() + len(self._data.train))

    def held_out(self) -> Iterator[Samples]:
        """All held-out samples in their order."""
        inputs, targets = self._data.test
        for indices in self._held_out_order():
            yield Samples(tuple(value[indices] for value in inputs), targets[indices])

    def _held_out_order(self) -> Tensor:
        return evaluation_order(self.held_out_samples, self.batch_size)


class LoadedData(TrainingData):
    """What loaders give, of which a few minibatches are in memory at any time.

    Torch's global generator is seeded for the training loader in every epoch. Generators of the
    loader's own go on from epoch to epoch, and a checkpoint holds their state at the beginning of
    its epoch: to go on in the middle, the loader begins the epoch anew, and what was done is
    skipped.

    Args:
        name: for the record of a run.
        loaders: of minibatches to train on, and of samples to evaluate on.
        unpacker: makes minibatches of what they give.
        minibatches: of an epoch; None for all that the loader gives.
        seed: of the order.
        note: told what is left out.

    Raises:
        InvalidInput: what the loader gives does not suit the model.
        DataError: the loader raised.
    """

    def __init__(
        self,
        name: str,
        loaders: Loaders,
        unpacker: Unpacker,
        *,
        minibatches: int | None,
        seed: int,
        note: Callable[[str], None],
    ) -> None:
        self.name = name
        self.batch_size = unpacker.batch_size
        self._train, self._held_out = loaders
        self._unpack = unpacker
        self._seed = seed
        self._note = note
        self._noted = False
        self._states = self._current_states()
        self._check_first(self._train, one_by_one=True)
        if self._held_out is not None:
            self._check_first(self._held_out, one_by_one=False)
        self.minibatches = self._count_minibatches() if minibatches is None else minibatches
        self.held_out_samples = self._count_held_out()

    def training(self, epoch: int, first: int, begin: int) -> RunOptions:
        """From minibatch ``begin`` on; smaller minibatches than the model's are left out."""
        return RunOptions(loaded=self._epoch(epoch, begin))

    def evaluation(self) -> RunOptions:
        """What the held-out loader gives, in whole minibatches."""
        return RunOptions(loaded=self.held_out())

    def held_out(self) -> Generator[Samples]:
        """What the held-out loader gives, in whole minibatches."""
        assert self._held_out is not None
        waiting: list[Samples] = []
        with undisturbed(self._held_out):
            for batch in iterate(self._held_out, epoch_seed(self._seed, 0)):
                waiting.append(self._unpack(batch))
                if sum(map(len, waiting)) >= self.batch_size:
                    together = _joined(waiting)
                    whole = len(together) // self.batch_size * self.batch_size
                    for begin in range(0, whole, self.batch_size):
                        yield _chosen(together, slice(begin, begin + self.batch_size))
                    waiting = [_chosen(together, slice(whole, None))]
        rest = _joined(waiting) if waiting else None
        if rest is not None and len(rest):
            for indices in evaluation_order(len(rest), self.batch_size):
                yield _chosen(rest, indices)

    def state(self) -> list[Tensor]:
        """Of the loader's own generators, where the epoch begins that is not yet done."""
        return self._states

    def load_state(self, state: list[Tensor]) -> None:
        """Go on there."""
        generators = generators_of(self._train)
        if len(state) != len(generators):
            raise InvalidInput(
                f"the checkpoint's loader had {len(state)} generators of its own, this one has "
                f"{len(generators)}; give the same kind of loader"
            )
        for generator, known in zip(generators, state, strict=True):
            generator.set_state(known)
        self._states = self._current_states()

    def _epoch(self, epoch: int, begin: int) -> Generator[Samples]:
        self._states = self._current_states()
        try:
            yield from islice(self._whole(epoch), begin, self.minibatches)
        finally:
            # Whoever let go of this has all the minibatches of the epoch.
            self._states = self._current_states()

    def _whole(self, epoch: int) -> Generator[Samples]:
        for batch in iterate(self._train, epoch_seed(self._seed, epoch)):
            minibatch = self._unpack(batch)
            if len(minibatch) > self.batch_size:
                raise self._too_large(minibatch)
            if len(minibatch) < self.batch_size:
                self._note_left_out(f"a minibatch of {len(minibatch)} samples")
                continue
            yield minibatch

    def _note_left_out(self, what: str) -> None:
        if not self._noted:
            self._noted = True
            self._note(
                f"{what} is left out of every epoch: the model is captured for minibatches of "
                f"{self.batch_size}"
            )

    def _too_large(self, minibatch: Samples) -> InvalidInput:
        return InvalidInput(
            f"the loader gives a minibatch of {len(minibatch)} samples, but the model is captured "
            f"for minibatches of {self.batch_size}; make it batch_size={self.batch_size}"
        )

    def _check_first(self, loader: Loader, *, one_by_one: bool) -> None:
        """What does not fit is told before any worker starts."""
        with undisturbed(loader):
            batch = next(iterate(loader, epoch_seed(self._seed, 0)), None)
        if batch is None:
            raise InvalidInput("a loader gives no minibatch at all; at least one is needed")
        samples = self._unpack(batch)
        if one_by_one and len(samples) > self.batch_size:
            raise self._too_large(samples)

    def _count_minibatches(self) -> int:
        samples, batches = known_samples(self._train), self._train.batch_size
        if samples is not None and batches == self.batch_size:
            count, rest = divmod(samples, self.batch_size)
            if rest:
                self._note_left_out(f"the last minibatch of {rest} samples")
        else:
            self._note("the training loader is read once to count its minibatches")
            with undisturbed(self._train):
                count = sum(1 for _ in self._whole(epoch=1))
        if not count:
            raise InvalidInput(
                f"the loader gives no minibatch of {self.batch_size} samples, for which the model "
                f"is captured; make it batch_size={self.batch_size}"
            )
        return count

    def _count_held_out(self) -> int:
        if self._held_out is None:
            return 0
        known = known_samples(self._held_out)
        if known is not None:
            return known
        self._note("the held-out loader is read once to count its samples")
        with undisturbed(self._held_out):
            batches = iterate(self._held_out, epoch_seed(self._seed, 0))
            return sum(len(self._unpack(batch)) for batch in batches)

    def _current_states(self) -> list[Tensor]:
        return [generator.get_state() for generator in generators_of(self._train)]


def _joined(parts: list[Samples]) -> Samples:
    inputs = zip(*(part.inputs for part in parts), strict=True)
    return Samples(
        tuple(torch.cat(values) for values in inputs), torch.cat([part.targets for part in parts])
    )


def _chosen(samples: Samples, which: slice | Tensor) -> Samples:
    return Samples(tuple(value[which] for value in samples.inputs), samples.targets[which])
