"""Minibatches from a ``torch.utils.data.DataLoader``: in a repeatable order, and checked."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import BatchSampler, DataLoader, default_collate
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import DataError, DRLPPError, InvalidInput
from drlpp.runtime.ipc.session_folder import keep_socket_folder
from drlpp.specs.batches import Batch, named_tensors, tensors_in
from drlpp.specs.data import Samples, arranged, has_no_targets, kinds_of, kinds_text

Unpack = Callable[[Any], tuple[Batch, Batch | None]]
"""Makes ``(inputs, targets)`` of what a loader gives, structured as the model takes them."""

Loader = DataLoader

TRAINING, HELD_OUT = "the training loader", "the held-out loader"
"""What errors and notes call the two loaders of a training."""

_DIED = " (a process of the loader has ended; the system may have killed it for want of memory)"

_FRAME = re.compile(r'\n  File ".*", line \d+, in .*(?:\n  .*)*\n')


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


def iterate(loader: Loader, seed: int, epoch: int = 1, name: str = TRAINING) -> Generator[Any]:
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
                except (Exception, SystemExit) as error:
                    # What torch raises if a process dies while it hands over loaded data.
                    died = isinstance(error, ConnectionError | EOFError)
                    raise DataError(
                        f"{name} raised {type(error).__name__} after {count} minibatches: "
                        f"{_message_of(error)}{_DIED if died else ''}"
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


def _message_of(error: BaseException) -> str:
    """Return what an error says, in one line.

    A loader's process sends its whole traceback as the text of what it raised. The message in it
    begins behind the last line that is indented as a traceback's are.
    """
    text = str(error).strip()
    # Behind a frame its line of code, and marks below it.
    *frames, last = _FRAME.split(text)
    if frames and text.startswith("Caught "):
        text = last.partition(": ")[2]
    return " ".join(text.split())


class Unpacker:
    """Takes batches apart and holds them against the model's example inputs and targets.

    Without a function ``unpack``, a batch is

    - a dictionary: inputs and targets are taken by their names in the examples; targets that have
      no names are called ``labels``, ``label``, ``targets`` or ``target``;
    - a tuple or list of the inputs and, last, the targets, if the model has any.
    """

    def __init__(
        self,
        unpack: Unpack | None,
        captured: CapturedModel,
        note: Callable[[str], None] = lambda note: None,
    ) -> None:
        self._unpack = unpack
        self._inputs, self._targets = captured.task.inputs, captured.task.targets
        self._note = cache(note)
        self.batch_size = captured.task.batch_size

    def __call__(self, batch: object, loader: str = TRAINING) -> Samples:
        """Return the samples of a batch, however many, in memory that the loader does not reuse.

        Raises:
            InvalidInput: they do not suit the model.
        """
        samples = self._taken_apart(batch, loader)
        named = (
            *named_tensors("inputs", samples.inputs),
            *named_tensors("targets", samples.targets),
        )
        for name, tensor in named:
            if tensor.layout != torch.strided or tensor.is_meta:
                kind = "on device meta" if tensor.is_meta else f"of layout {tensor.layout}"
                raise InvalidInput(
                    f"{loader} gives a tensor {kind} for {name}; expected a dense one with values"
                )
        if kinds_of(samples) != kinds_of((self._inputs, self._targets)):
            raise InvalidInput(
                f"{loader} gives {kinds_text(*samples)}, but the model takes "
                f"{kinds_text(self._inputs, self._targets)}"
                f"{_hint(samples, (self._inputs, self._targets))}"
            )
        lengths = {len(value) for value in tensors_in(samples)}
        if len(lengths) > 1:
            raise InvalidInput(
                f"{loader} gives a batch whose tensors have {sorted(lengths)} samples; they "
                "have to be equally many"
            )
        return pytree.tree_map(torch.clone, samples)

    def known_samples(self, loader: Loader) -> int | None:
        """Return how many samples an epoch gives, None where only loading them would show it.

        A function that collates or unpacks samples may make more or fewer of them.
        """
        batches = loader.batch_sampler
        if self._unpack is not None or loader.collate_fn is not default_collate:
            return None
        if type(batches) is not BatchSampler or not isinstance(batches.sampler, Sized):
            return None
        samples = len(batches.sampler)
        return samples - samples % batches.batch_size if batches.drop_last else samples

    def _taken_apart(self, batch: object, loader: str) -> Samples:
        where = f"a batch of {loader}"
        if self._unpack is not None:
            where, samples = f"what unpack makes of {where}", self._by_function(batch, loader)
        elif isinstance(batch, Mapping):
            samples = self._by_name(batch, loader)
        elif isinstance(batch, tuple | list):
            samples = self._by_position(batch, loader)
        elif isinstance(batch, Tensor) and has_no_targets(self._targets):
            samples = Samples((batch,), None)
        else:
            raise InvalidInput(
                f"{loader} gives batches of type {type(batch).__name__}; expected (inputs, "
                "targets) or a dictionary, or give a function unpack that makes (inputs, targets) "
                "of a batch"
            )
        return arranged(samples, self._inputs, self._targets, where)

    def _by_function(self, batch: object, loader: str) -> Samples:
        assert self._unpack is not None
        try:
            inputs, targets = self._unpack(batch)
        except (Exception, SystemExit) as error:
            raise InvalidInput(
                f"unpack raised {type(error).__name__}: {error}; it has to make (inputs, targets) "
                f"of a batch of {loader}, which is a {type(batch).__name__}"
            ) from error
        return Samples((inputs,) if isinstance(inputs, Tensor) else inputs, targets)

    def _by_name(self, batch: Mapping[str, Any], loader: str) -> Samples:
        if not isinstance(self._inputs, Mapping):
            raise InvalidInput(
                f"{loader} gives dictionaries with {', '.join(map(repr, batch))}, but the "
                "model's example inputs have no names; make them a dictionary too (keywords of its "
                "forward), or give a function unpack that makes (inputs, targets) of a batch"
            )
        names = set(self._inputs)
        if has_no_targets(self._targets):
            targets = None
        elif isinstance(self._targets, Mapping):
            targets, names = batch, names | set(self._targets)
        else:
            label = next((name for name in _LABELS if name in batch), None)
            if label is None:
                raise InvalidInput(
                    f"{loader} gives dictionaries with {', '.join(map(repr, batch))}, and none "
                    f"of it is called {' or '.join(map(repr, _LABELS))}; call the targets so, make "
                    "the model's example targets a dictionary, or give a function unpack"
                )
            targets, names = batch[label], names | {label}
        left_out = [name for name in batch if name not in names]
        if left_out:
            self._note(
                f"{loader} also gives {', '.join(map(repr, left_out))}, which the model does not "
                f"take: its example inputs have {', '.join(map(repr, self._inputs))}"
            )
        return Samples(batch, targets)

    def _by_position(self, batch: Sequence[Any], loader: str) -> Samples:
        """Divide a batch behind its inputs; without names, however the inputs are grouped."""
        flat = _flat(batch)
        targets = () if has_no_targets(self._targets) else tensors_in(self._targets)
        count = len(tensors_in(self._inputs))
        if all(isinstance(value, Tensor) for value in flat):
            if len(flat) != count + len(targets):
                raise InvalidInput(
                    f"{loader} gives {len(flat)} tensors, {kinds_of(flat)}, but the model takes "
                    f"{len(targets) + count}: {kinds_text(self._inputs, self._targets)}"
                )
            structure = pytree.tree_structure(self._inputs)
            inputs = pytree.tree_unflatten(flat[:count], structure)
            structure = pytree.tree_structure(self._targets)
            rest = pytree.tree_unflatten(flat[count:], structure) if targets else None
            return Samples(inputs, rest)
        *given, last = (*batch, None) if has_no_targets(self._targets) else batch
        if isinstance(self._inputs, Mapping) or len(given) != len(self._inputs):
            # ((inputs, …), targets), or inputs of which each is a structure.
            given = given[0] if given else given
        return Samples(given, last)


_LABELS = ("labels", "label", "targets", "target")


def _hint(found: object, wanted: object) -> str:
    """Return what to do where sizes are all that differs, as in sentences of another length."""
    pairs = list(zip(tensors_in(found), tensors_in(wanted), strict=True))
    if any((a.dim(), a.dtype) != (b.dim(), b.dtype) for a, b in pairs):
        return ""
    return (
        "; a pipeline's shapes are fixed, so bring every sample to the size of the examples: pad "
        "and cut sentences (a tokenizer's padding='max_length', truncation=True), scale images"
    )


def _flat(values: Sequence[Any]) -> list[Any]:
    # Not by pytree, for which a list's or tuple's subclass is a leaf.
    return [
        leaf
        for value in values
        for leaf in (_flat(value) if isinstance(value, tuple | list) else [value])
    ]


def begin_epoch(loader: DataLoader, number: int) -> None:
    """Prepare a loader for an epoch, counted from 0, whatever epochs it has seen before.

    Samplers and data sets that order their samples by the epoch, such as ``DistributedSampler``,
    learn which it is. Processes that ``persistent_workers`` kept are let go, since copies of the
    data set live in them, with a history that no checkpoint knows.
    """
    loader._iterator = None
    for part in _parts_of(loader):
        if callable(tell := getattr(part, "set_epoch", None)):
            tell(number)


_WRAPPED = frozenset(
    [
        "dataset",
        "datasets",
        "sampler",
        "batch_sampler",
        "transform",
        "target_transform",
        "transforms",
    ]
)
"""Attributes in which parts of torch's and torchvision's have others."""


def generators_of(loader: DataLoader) -> list[torch.Generator]:
    """Return, each once, the generators that a loader, its samplers and its data set have.

    Those of what they wrap are among them, as in a ``Subset`` or a ``Compose``.
    """
    found: dict[int, torch.Generator] = {}
    seen, waiting = set[int](), list[object]([loader])
    for part in waiting:
        if id(part) in seen:
            continue
        seen.add(id(part))
        for name, value in getattr(part, "__dict__", {}).items():
            if isinstance(value, torch.Generator):
                found.setdefault(id(value), value)
            elif name in _WRAPPED:
                waiting += value if isinstance(value, list | tuple) else [value]
    return list(found.values())


def _parts_of(loader: DataLoader) -> tuple[object, ...]:
    """Return what decides about order and samples."""
    batches = loader.batch_sampler
    return loader.dataset, loader.sampler, batches, getattr(batches, "sampler", None)


@contextmanager
def preserve_rng_state(loader: DataLoader) -> Iterator[None]:
    """Restore generators after an iteration that the next one must not notice."""
    generators = generators_of(loader)
    states = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
