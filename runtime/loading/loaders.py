"""Minibatches from a ``torch.utils.data.DataLoader``: in a repeatable order, and checked."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sized
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, default_collate
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import DataError, DRLPPError, InvalidInput
from drlpp.runtime.ipc.session_folder import keep_socket_folder
from drlpp.specs.batches import Batch
from drlpp.specs.data import Samples, fitting, has_no_targets

Unpack = Callable[[Any], tuple[Batch, Batch | None]]
"""Makes ``(inputs, targets)`` of what a loader gives, structured as the model takes them."""

TRAINING, HELD_OUT = "the training loader", "the held-out loader"
"""What errors and notes call the two loaders of a training."""

_DIED = " (a process of the loader has ended; the system may have killed it for want of memory)"

_TRACEBACK = re.compile(r"\ACaught (?:.*\n)* .*\n\S+: ")
"""What a loader's process says before the message of what it raised."""


@contextmanager
def suspended_sigchld_handler() -> Iterator[None]:
    """Interrupt nothing but :func:`iterate` in the block when a process of a loader dies.

    torch has a handler for that, which raises wherever the main thread happens to be, in the middle
    of ending workers for instance. Without it, asking such a loader for more tells within seconds.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        # None stands for one that Python has not installed.
        signal.signal(signal.SIGCHLD, before or signal.SIG_DFL)


def iterate(loader: DataLoader, seed: int, epoch: int = 1, name: str = TRAINING) -> Generator[Any]:
    """Yield what a loader gives in an epoch, as if ``torch.manual_seed(seed)`` preceded it.

    Samplers and data sets with ``set_epoch`` get the epoch; it is counted from 1 here and
    from 0 there. torch's global generator is lent to the loader while it works, and given back in
    between, so that neither it nor anyone else notices the other. Errors call it ``name``.

    Raises:
        DataError: the loader, its dataset or a process of it raised.
    """
    state = torch.Generator().manual_seed(seed).get_state()
    iterator: Iterator[Any] | None = None
    count = 0
    try:
        while True:
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(state)
                try:
                    if iterator is None:
                        _begin_epoch(loader, epoch - 1)
                        if loader.num_workers:
                            # Their sockets go where they are removed even if all is killed.
                            keep_socket_folder()
                        with suspended_sigchld_handler():
                            # torch installs its handler here.
                            iterator = iter(loader)
                    batch = next(iterator)
                except StopIteration:
                    return
                except DRLPPError:
                    raise
                except (Exception, SystemExit) as error:
                    # What torch raises if a process dies while it hands over loaded data.
                    died = isinstance(error, ConnectionError | EOFError)
                    message = " ".join(_TRACEBACK.sub("", str(error)).split())
                    raise DataError(
                        f"{name} raised {type(error).__name__} after {count} minibatches: "
                        f"{message}{_DIED if died else ''}"
                    ) from error
                state = torch.get_rng_state()
            yield batch
            count += 1
    finally:
        _end_processes(loader, iterator)


def _end_processes(loader: DataLoader, iterator: object) -> None:
    """End the processes of a loader that has ended or was given up.

    Torch asks them to end by a queue, and then waits: for 5 s for each that is frozen, and also for
    the others if it does so when garbage is collected, since the queue goes first.
    """
    for process in getattr(iterator, "_workers", ()):
        with suppress(OSError):
            if Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                process.kill()
    # Those that stay (``persistent_workers``) are wanted again.
    if isinstance(iterator, _MultiProcessingDataLoaderIter) and not loader.persistent_workers:
        iterator._shutdown_workers()


class Unpacker:
    """Takes batches apart and holds them against the model's example inputs and targets.

    Without a function ``unpack``, a batch is

    - a dictionary: inputs and targets are taken by their names in the examples; targets that have
      no names are called ``labels``;
    - a tuple or list of the inputs, each by itself or all in one structure, and, last, the targets,
      if the model has any.
    """

    def __init__(
        self,
        unpack: Unpack | None,
        captured: CapturedModel,
        note: Callable[[str], None] = lambda note: None,
    ) -> None:
        self._unpack = unpack
        self._examples = Samples(captured.task.inputs, captured.task.targets)
        self.note = cache(note)

    def __call__(self, batch: object, loader: str = TRAINING) -> Samples:
        """Return the samples of a batch, however many, in memory that the loader does not reuse.

        Raises:
            InvalidInput: they do not suit the model.
        """
        if self._unpack is not None:
            where, samples = f"what unpack makes of a batch of {loader}", self._by_function(batch)
        elif isinstance(batch, Mapping):
            where, samples = f"a batch of {loader}", self._by_name(batch, loader)
        else:
            where, samples = f"a batch of {loader}", self._by_position(batch)
        return pytree.tree_map(torch.clone, fitting(samples, self._examples, where, _PADDING))

    def known_samples(self, loader: DataLoader) -> int | None:
        """Return how many samples an epoch gives, None where only loading them would show it.

        A function that collates or unpacks samples may make more or fewer of them, and so may each
        process of an iterable data set.
        """
        batches = loader.batch_sampler
        kept = self._unpack is None and loader.collate_fn is default_collate
        if not kept or type(batches) is not BatchSampler or not isinstance(batches.sampler, Sized):
            return None
        samples = len(batches.sampler)
        return samples - samples % batches.batch_size if batches.drop_last else samples

    def _by_function(self, batch: object) -> Samples:
        assert self._unpack is not None
        try:
            inputs, targets = self._unpack(batch)
        except (Exception, SystemExit) as error:
            raise InvalidInput(
                f"unpack raised {type(error).__name__}: {error}; it has to make (inputs, targets) "
                f"of a batch, which is a {type(batch).__name__}"
            ) from error
        return Samples((inputs,) if isinstance(inputs, Tensor) else inputs, targets)

    def _by_name(self, batch: Mapping[str, Any], loader: str) -> Samples:
        inputs, targets = self._examples
        if not isinstance(inputs, Mapping):
            raise InvalidInput(
                f"a batch of {loader} is a dictionary, but the model's inputs have no names; let "
                "the loader, or unpack, make (inputs, targets)"
            )
        named = isinstance(targets, Mapping)
        if not (named or has_no_targets(targets) or "labels" in batch):
            raise InvalidInput(
                f"a batch of {loader} has no 'labels', only {', '.join(map(repr, batch))}; rename "
                "its targets, or let the loader, or unpack, make (inputs, targets)"
            )
        names = {*inputs} | ({*targets} if named else {"labels"})
        if left_out := [name for name in batch if name not in names]:
            self.note(
                f"{loader} also gives {', '.join(map(repr, left_out))}, which the model does not "
                f"take: it has {', '.join(map(repr, sorted(names)))}"
            )
        found = batch if named else batch.get("labels")
        return Samples(batch, None if has_no_targets(targets) else found)

    def _by_position(self, batch: object) -> Samples:
        inputs, targets = self._examples
        given: Any = list(batch) if isinstance(batch, tuple | list) else [batch]
        found = given.pop() if given and not has_no_targets(targets) else None
        # Inputs that are a dictionary, or several, may be one structure: ((inputs, …), targets).
        grouped = len(given) == 1 and not isinstance(given[0], Tensor)
        if grouped and (isinstance(inputs, Mapping) or len(inputs) > 1):
            (given,) = given
        return Samples(given, found)


_PADDING = (
    "; a pipeline's shapes are fixed, so bring every sample to the size of the examples: pad and "
    "cut sentences (a tokenizer's padding='max_length', truncation=True), scale images"
)


def minibatches_of(loader: DataLoader) -> int | None:
    """Return the whole minibatches of an epoch by a loader's length, None if it has none."""
    batches: Any = loader.batch_sampler
    with suppress(TypeError, AttributeError):
        if not isinstance(batches, BatchSampler):
            return len(loader)
        iterable = isinstance(loader.dataset, IterableDataset)
        source: Any = loader.dataset if iterable else batches.sampler
        return len(source) // batches.batch_size
    return None


def _begin_epoch(loader: DataLoader, number: int) -> None:
    """Prepare a loader for an epoch, counted from 0, whatever epochs it has seen before.

    Samplers and data sets that order their samples by the epoch, such as ``DistributedSampler``,
    learn which it is. Processes that ``persistent_workers`` kept are let go, since copies of the
    data set live in them, with a history that no checkpoint knows.
    """
    loader._iterator = None
    for part in _parts_of(loader):
        if callable(tell := getattr(part, "set_epoch", None)):
            tell(number)


def generators_of(loader: DataLoader) -> list[torch.Generator]:
    """Return, each once, the generators that a loader, its samplers and its data set have."""
    found = {
        id(value): value
        for part in (loader, *_parts_of(loader))
        for value in getattr(part, "__dict__", {}).values()
        if isinstance(value, torch.Generator)
    }
    return list(found.values())


def _parts_of(loader: DataLoader) -> tuple[object, ...]:
    """Return what decides about order and samples."""
    batches = loader.batch_sampler
    return loader.dataset, loader.sampler, batches, getattr(batches, "sampler", None)
