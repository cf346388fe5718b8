"""Minibatches from a ``torch.utils.data.DataLoader``: in a repeatable order, and checked."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence, Sized
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, default_collate
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from drlpp.errors import DataError, DRLPPError, InvalidInput
from drlpp.runtime.ipc.session_folder import keep_socket_folder
from drlpp.runtime.loading.loader_state import begin_epoch
from drlpp.specs.data import Samples

Unpack = Callable[[Any], tuple[Any, Tensor]]
"""Makes ``(inputs, targets)`` of what a loader gives; inputs are a tensor or several."""

Loader = DataLoader

_FRAME = re.compile(r'  File ".*", line \d+, in ')


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


def iterate(loader: Loader, seed: int, epoch: int = 1, name: str = "the loader") -> Generator[Any]:
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
                        begin_epoch(loader, epoch - 1)
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
                except Exception as error:
                    raise DataError(
                        f"{name} raised {type(error).__name__} after {count} minibatches: "
                        f"{_message_of(error)}{_what_it_means(error)}"
                    ) from error
                state = torch.get_rng_state()
            yield batch
            count += 1
    finally:
        _end_processes(loader, iterator)


def _end_processes(loader: Loader, iterator: object) -> None:
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


def _what_it_means(error: Exception) -> str:
    """Explain an error that torch raises if a process dies while it hands over loaded data."""
    if not isinstance(error, ConnectionError | EOFError):
        return ""
    return " (a process of the loader has ended; the system may have killed it for want of memory)"


def _message_of(error: Exception) -> str:
    """Return what an error says, in one line.

    A loader's process sends its whole traceback as the text of what it raised. The message in it
    begins behind the last line that is indented as a traceback's are.
    """
    lines = str(error).strip().splitlines()
    frames = [number for number, line in enumerate(lines) if _FRAME.match(line)]
    if frames and lines[0].startswith("Caught "):
        # Behind a frame its line of code, and marks below it.
        first = next(
            (n for n in range(frames[-1] + 1, len(lines)) if not lines[n].startswith(" ")),
            len(lines) - 1,
        )
        lines = lines[first:]
        lines[0] = lines[0].partition(": ")[2]
    return " ".join(line.strip() for line in lines)


def known_samples(loader: Loader) -> int | None:
    """Return how many samples an epoch gives, None where only loading them would show it.

    A function that collates samples may make more or fewer of them.
    """
    if loader.collate_fn is not default_collate:
        return None
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
        targets: of one minibatch, as captured.
    """

    def __init__(self, unpack: Unpack | None, inputs: Sequence[Tensor], targets: Tensor) -> None:
        self._unpack = unpack
        self._expected = (*inputs, targets)
        self.batch_size = len(inputs[0])

    def __call__(self, batch: object) -> Samples:
        """Return the samples of a batch, however many, in memory that the loader does not reuse.

        Raises:
            InvalidInput: they do not suit the model.
        """
        values = self._taken_apart(batch)
        found = [_kind_of(value) for value in values]
        wanted = [_kind_of(value) for value in self._expected]
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
        copies = [value.clone() for value in values]
        return Samples(tuple(copies[:-1]), copies[-1])

    @property
    def keeps_count(self) -> bool:
        """Whether a batch of n samples becomes n samples; a user's function may do anything."""
        return self._unpack is None

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


def _kind_of(value: object) -> object:
    """Return shape and type of the samples in a tensor, or what it is instead."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    if not value.dim():
        return "a single number"
    return tuple(value.shape[1:]), str(value.dtype).removeprefix("torch.")


def _flat(values: Sequence[Any]) -> list[Any]:
    return [
        leaf
        for value in values
        for leaf in (_flat(value) if isinstance(value, tuple | list) else [value])
    ]
