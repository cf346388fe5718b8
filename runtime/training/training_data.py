"""What is trained and evaluated on: samples in memory, or loaders that are read as one goes."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import closing
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import DataError, InvalidInput
from drlpp.runtime.deploying.deployment import RunOptions
from drlpp.runtime.loading.loaders import (
    HELD_OUT,
    TRAINING,
    Unpack,
    Unpacker,
    generators_of,
    iterate,
    minibatches_of,
)
from drlpp.runtime.session.session import ClusterSession
from drlpp.runtime.training.held_out import HeldOutCount
from drlpp.specs.batches import chosen, joined, tensors_in
from drlpp.specs.data import Data, Loaders, Samples, fitted, load_data

_MOST_HASHED_BYTES = 64 * 2**20


class LoaderState(NamedTuple):
    """What a checkpoint keeps of a loader.

    Attributes:
        generators: states of its own generators at the beginning of the epoch that is not yet done.
        first_minibatch: a hash of that epoch's first minibatch, empty where none has been loaded.
    """

    generators: tuple[Tensor, ...] = ()
    first_minibatch: str = ""


class TrainingData(ABC):
    """The data of a training.

    Attributes:
        name: for the record of a run.
        batch_size: of the model as it was captured.
        minibatches: of an epoch.
        held_out_count: of samples to evaluate on, 0 for none.
        fingerprint: of the samples to train on, which resuming compares; None where the name, or
            the epoch's first minibatch, has to do.
    """

    fingerprint: str | None = None
    name: str
    batch_size: int
    minibatches: int
    held_out_count: HeldOutCount

    def lend_to(self, session: ClusterSession) -> None:
        """Give the workers what they hold all the time."""

    @abstractmethod
    def minibatches_here(self, epoch: int, begin: int) -> Generator[Samples]:
        """Return the minibatches of an epoch, counted from 1, from number ``begin`` on.

        A loader begins the epoch anew to get there: that is done now, since it is no training.
        """

    @abstractmethod
    def held_out(self) -> Generator[Samples]:
        """Yield the held-out minibatches."""

    def training(self, epoch: int, begin: int) -> RunOptions:
        """Return the minibatches of an epoch for workers, from number ``begin`` on."""
        return RunOptions(loaded=self.minibatches_here(epoch, begin))

    def evaluation(self) -> RunOptions:
        """Return the held-out minibatches for workers."""
        return RunOptions(loaded=self.held_out())

    def state(self) -> LoaderState:
        """Return what a checkpoint needs to continue with the same samples."""
        return LoaderState()

    def load_state(self, state: LoaderState) -> None:
        """Take over what :meth:`state` gave."""


def epoch_seed(seed: int, epoch: int) -> int:
    """Return the seed of the order of samples; epoch 0 is what comes before, and held-out data."""
    return (seed * 1_000_003 + epoch) % 2**64


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
        return RunOptions(order=self.held_out_count.order + len(self._data.train))

    def held_out(self) -> Generator[Samples]:
        for indices in self.held_out_count.order:
            yield chosen(self._data.test, indices)


class LoadedData(TrainingData):
    """What loaders give, of which a few minibatches are in memory at any time.

    Torch's global generator is seeded for the training loader in every epoch. Generators of the
    loader's own continue from epoch to epoch, and a checkpoint holds their state at the start of
    its epoch: to resume in the middle, the loader begins the epoch anew, and what was done is
    skipped. Without a number of ``minibatches`` an epoch is all that the loader gives, whose data
    set or sampler has a length.

    Raises:
        InvalidInput: what the loader gives does not suit the model.
        DataError: the loader raised.
    """

    def __init__(
        self,
        name: str,
        loaders: Loaders,
        unpack: Unpack | None,
        *,
        captured: CapturedModel,
        minibatches: int | None = None,
        seed: int,
        note: Callable[[str], None],
    ) -> None:
        self.name = name
        self.batch_size = captured.task.batch_size
        self._train, self._held_out = loaders
        self._seed = seed
        self._unpack = Unpacker(unpack, captured, note)
        self._note = self._unpack.note
        self._state = self._current_state()
        if (first := self._first(self._train, TRAINING)) != self.batch_size:
            raise self._unlike(first)
        known, samples = minibatches_of(self._train), self._unpack.known_samples(self._train)
        if minibatches is None and not known:
            raise InvalidInput(
                f"{TRAINING} does not say how many samples it has; give its data set or sampler a "
                "length, or say to a training how many minibatches make an epoch (minibatches, or "
                "drlpp train --minibatches)"
            )
        if samples is not None and (minibatches or 0) > samples // self.batch_size:
            raise InvalidInput(
                f"minibatches is {minibatches}, but {TRAINING} gives {known} of "
                f"{self.batch_size} samples in an epoch"
            )
        self._wants_all = minibatches in (None, known)
        self.minibatches = minibatches or known or 0
        self.held_out_count = HeldOutCount(self._count_held_out(), self.batch_size)

    def held_out(self) -> Generator[Samples]:
        assert self._held_out is not None
        size, left = self.batch_size, self.held_out_count.samples
        waiting: list[Samples] = []
        for samples in self._unnoticed(self._held_out, HELD_OUT):
            waiting.append(samples)
            left -= len(samples)
            if left < 0:
                break
            # The last minibatch waits until it is known that nothing is missing.
            if sum(map(len, waiting)) > size:
                together = joined(waiting)
                whole = (len(together) - 1) // size * size
                for begin in range(0, whole, size):
                    yield chosen(together, slice(begin, begin + size))
                waiting = [chosen(together, slice(whole, None))]
        if left:
            raise DataError(
                f"{HELD_OUT} gives {'fewer' if left > 0 else 'more'} samples than the "
                f"{self.held_out_count.samples} that are expected; it has to give as many each "
                "time it is iterated, and as its length says"
            )
        rest = joined(waiting)
        for indices in HeldOutCount(len(rest), size).order:
            yield chosen(rest, indices)

    def state(self) -> LoaderState:
        return self._state

    def load_state(self, state: LoaderState) -> None:
        generators = generators_of(self._train)
        try:
            for generator, known in zip(generators, state.generators, strict=True):
                generator.set_state(known)
        except (RuntimeError, TypeError, ValueError) as error:
            raise InvalidInput(
                f"the checkpoint's loader had {len(state.generators)} generators of its own, this "
                f"one has {len(generators)} ({error}); give the same kind of loader"
            ) from None
        self._state = state

    def minibatches_here(self, epoch: int, begin: int) -> Generator[Samples]:
        found = self._minibatches(epoch, begin)
        return _primed(found) if begin else found

    def _minibatches(self, epoch: int, begin: int) -> Generator[Samples]:
        """Yield the minibatches from ``begin`` on, without those smaller than the model's."""
        known = self._state.first_minibatch
        self._state = self._current_state()
        whole, number = self._whole(epoch), -1
        try:
            for number, minibatch in enumerate(islice(whole, self.minibatches)):
                if number == 0:
                    self._state = self._state._replace(first_minibatch=_hash_of(minibatch))
                    if begin and known not in ("", self._state.first_minibatch):
                        raise InvalidInput(
                            f"{TRAINING} gives other minibatches in epoch {epoch} than when the "
                            "checkpoint was written, so that samples would be missed or counted "
                            "twice; its order and whatever is random in its samples has to "
                            "follow from torch's global generator, from torch.Generator "
                            "attributes of its own, or from set_epoch(epoch)"
                        )
                last = number == self.minibatches - 1
                # A sampler may draw once more when it is asked past its end.
                if last and self._wants_all and next(whole, None) is not None:
                    self._note(
                        f"{TRAINING} gives more minibatches in an epoch than the "
                        f"{self.minibatches} that are expected: those beyond are not trained on"
                    )
                if number >= begin:
                    yield minibatch
            if number < self.minibatches - 1:
                raise DataError(
                    f"{TRAINING} gives {number + 1} minibatches in epoch {epoch}, where "
                    f"{self.minibatches} are expected; its data set has to begin anew each time "
                    "it is iterated, and give as many (or say how many make an epoch: "
                    "minibatches, --minibatches)"
                )
        finally:
            # Whoever let go of this has all the minibatches of the epoch.
            self._state = self._current_state()

    def _whole(self, epoch: int) -> Generator[Samples]:
        for batch in iterate(self._train, epoch_seed(self._seed, epoch), epoch):
            minibatch = self._unpack(batch)
            if len(minibatch) > self.batch_size:
                raise self._unlike(len(minibatch))
            if len(minibatch) == self.batch_size:
                yield minibatch
                continue
            # One text, so that it is noted once, whatever is left over.
            self._note(
                "smaller minibatches are left out of every epoch: the model is captured for "
                f"minibatches of {self.batch_size}"
            )

    def _unlike(self, samples: int) -> InvalidInput:
        return InvalidInput(
            f"{TRAINING} gives a minibatch of {samples} samples, but the model is captured for "
            f"minibatches of {self.batch_size}; make it batch_size={self.batch_size}"
        )

    def _unnoticed(self, loader: DataLoader, name: str) -> Generator[Samples]:
        """Yield what a loader gives, whose generators are then as if it had not."""
        generators = generators_of(loader)
        states = [generator.get_state() for generator in generators]
        try:
            for batch in iterate(loader, epoch_seed(self._seed, 0), name=name):
                yield self._unpack(batch, name)
        finally:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)

    def _first(self, loader: DataLoader, name: str) -> int:
        """Return the samples of the first minibatch, which fits, before any worker starts."""
        with closing(self._unnoticed(loader, name)) as given:
            first = next(given, None)
        if first is None:
            raise InvalidInput(f"{name} gives no minibatch at all; at least one is needed")
        return len(first)

    def _count_held_out(self) -> int:
        if self._held_out is None:
            return 0
        self._first(self._held_out, HELD_OUT)
        if minibatches_of(self._held_out) is None:
            raise InvalidInput(
                f"{HELD_OUT} does not say how many samples it has; give its data set or sampler a "
                "length"
            )
        if (samples := self._unpack.known_samples(self._held_out)) is not None:
            return samples
        self._note(f"{HELD_OUT} is read once to count its samples")
        return sum(map(len, self._unnoticed(self._held_out, HELD_OUT)))

    def _current_state(self) -> LoaderState:
        generators = generators_of(self._train)
        return LoaderState(tuple(generator.get_state() for generator in generators))


def _primed(minibatches: Generator[Samples]) -> Generator[Samples]:
    """Load the first of the minibatches now, and yield them all later."""
    first = list(islice(minibatches, 1))

    def all_of_them() -> Generator[Samples]:
        with closing(minibatches):
            yield from first
            yield from minibatches

    return all_of_them()


def training_data(
    data: str | Data | DataLoader,
    held_out: DataLoader | None,
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
    if not isinstance(data, str | Data | DataLoader):
        raise InvalidInput(
            f"data to train on is a {type(data).__name__}; expected a name, "
            "package.module:factory, drlpp.specs.data.Data, or a torch.utils.data.DataLoader, "
            "such as DataLoader(TensorDataset(inputs, targets), batch_size)"
        )
    if not isinstance(held_out, DataLoader | None):
        raise InvalidInput(
            f"held_out is a {type(held_out).__name__}; expected a torch.utils.data.DataLoader"
        )
    found: Data | Loaders | DataLoader
    found = load_data(data, task.inputs, task.targets) if isinstance(data, str) else data
    if isinstance(found, DataLoader):
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


def _hash_of(samples: Samples) -> str:
    digest = hashlib.sha256()
    for tensor in tensors_in(samples):
        digest.update(_bytes_of(tensor))
    return digest.hexdigest()


def _fingerprint_of(samples: Samples) -> str:
    """Hash shapes, types and bytes; of a large tensor, those of samples spread evenly over it."""
    digest = hashlib.sha256()
    for tensor in tensors_in(samples):
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        step = max(1, -(-tensor.nbytes // _MOST_HASHED_BYTES))
        digest.update(_bytes_of(tensor.detach()[::step]))
    return digest.hexdigest()[:16]


def _bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of the tensor's values, in their order."""
    return tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data
