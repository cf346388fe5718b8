"""The table of faults: what happens, to what, and what a user is told.

Some faults come from outside: signals, a limit on files, and strangers at every port. Others come
from inside: :class:`FaultyAdam` is Adam, and has every worker that uses it look for *triggers*,
files named after faults. The first worker to reach the place of a trigger removes it and fails
there, so that a fault happens once, on whichever worker is first.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from drlpp.errors import (
    ModelError,
    NotFinite,
    OutOfMemory,
    RunFailure,
    StorageFailure,
    TrialTimeout,
    WorkerLost,
)
from drlpp.runtime.stage.stage_runner import StageRunner
from tests.endurance.faults.strangers import bother
from tests.support.processes import children_of, limit_memory, workers_of

_PAUSE_SECONDS = 1.5
_FILE_LIMIT_BYTES = 512
_MORE_MEMORY_BYTES = 2**20

_strangers: list[socket.socket] = []

Strike = Callable[[Path, list[int], random.Random], object]
"""Makes a fault happen, given the folder of triggers and the workers."""


def _to_worker(number: int) -> Strike:
    return lambda _triggers, workers, chance: os.kill(chance.choice(workers), number)


def _to_server(number: int) -> Strike:
    def strike(*_: Any) -> None:
        # The process that forks the workers.
        os.kill(next(child for child in children_of(os.getpid()) if children_of(child)), number)

    return strike


def _pause(_triggers: Path, workers: list[int], chance: random.Random) -> None:
    victim = chance.choice(workers)
    os.kill(victim, signal.SIGSTOP)
    time.sleep(_PAUSE_SECONDS)
    os.kill(victim, signal.SIGCONT)


def _forbid_files(_triggers: Path, workers: list[int], chance: random.Random) -> None:
    """Make writing beyond a few bytes fail, as on a full disk: the controller's, or a worker's."""
    process = chance.choice([*workers, os.getpid()])
    _, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (_FILE_LIMIT_BYTES, hard))


def _bother(_triggers: Path, workers: list[int], chance: random.Random) -> None:
    _strangers.extend(bother([os.getpid(), *workers], chance))


def _by_others(*_: Any) -> None:
    raise AssertionError("this fault is made where its trial is")


class Fault(NamedTuple):
    """A fault.

    Attributes:
        told: the error that is reported; None for a fault that nobody has to hear of.
        strike: makes it happen; None for one that a worker makes when it finds its trigger.
        during: in which work it is tried.
    """

    told: type[RunFailure] | None
    strike: Strike | None = None
    during: tuple[str, ...] = ("training", "measuring")


_TRAINING = ("training",)
FAULTS = {
    "killed": Fault(WorkerLost, _to_worker(signal.SIGKILL)),
    "server": Fault(WorkerLost, _to_server(signal.SIGKILL)),
    "frozen": Fault(TrialTimeout, _to_worker(signal.SIGSTOP)),
    "memory": Fault(OutOfMemory),
    "forward": Fault(ModelError),
    "backward": Fault(ModelError),
    "nan": Fault(NotFinite, None, _TRAINING),
    "disk": Fault(StorageFailure, _forbid_files, _TRAINING),
    "paused": Fault(None, _pause),
    "frozen server": Fault(None, _to_server(signal.SIGSTOP)),
    "strangers": Fault(None, _bother),
    "controller": Fault(None, _by_others, _TRAINING),
}


def faults_during(work: str) -> list[str]:
    """Return the names of the faults that are tried in this work."""
    return [name for name, fault in FAULTS.items() if work in fault.during]


def strike(name: str, triggers: Path, chance: random.Random) -> bool:
    """Make a fault happen now, or as soon as a worker gets to its place.

    Returns:
        False if there is no worker to strike.
    """
    strike_now = FAULTS[name].strike
    if strike_now is None:
        (triggers / name).touch()
        return True
    workers = workers_of(os.getpid())
    if workers:
        strike_now(triggers, workers, chance)
    return bool(workers)


def allow_files() -> None:
    """Take back, for this process, what a strike of "disk" did."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def samples(example_inputs: tuple[Tensor, ...]) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return data to train on: the class is the largest of the first five features."""
    generator = torch.Generator().manual_seed(3)
    width = example_inputs[0].shape[1]
    inputs = [torch.randn(count, width, generator=generator) for count in (2400, 16)]
    return tuple((values, values[:, :5].argmax(1)) for values in inputs)


def release(triggers: Path) -> None:
    """Take back triggers that no worker has found; strangers leave, what is frozen continues."""
    while _strangers:
        _strangers.pop().close()
    for child in children_of(os.getpid()):
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGCONT)
    for trigger in triggers.iterdir():
        trigger.unlink(missing_ok=True)


class FaultyAdam(torch.optim.Adam):
    """Adam, with a worker that fails in a pass where one of ``triggers``, a folder, says so."""

    def __init__(self, params: Iterable[Any], lr: float = 0.01, triggers: str = "") -> None:
        super().__init__(params, lr=lr)
        if triggers and multiprocessing.parent_process() is not None:
            _watch_passes(Path(triggers))


def _pulled(triggers: Path, place: str) -> bool:
    try:
        (triggers / place).unlink()
    except OSError:
        return False
    return True


def _watch_passes(triggers: Path) -> None:
    """Let forwards and backwards of this worker look for triggers."""
    if hasattr(StageRunner, "watched"):
        return
    StageRunner.watched = True  # type: ignore[attr-defined]
    call, backward = StageRunner._call, StageRunner.backward

    def watched_call(self: StageRunner, *arguments: Any) -> Any:
        if _pulled(triggers, "forward"):
            nn.functional.embedding(torch.tensor([99]), torch.zeros(2, 2))
        if _pulled(triggers, "memory"):
            _run_out_of_memory()
        outputs, loss = call(self, *arguments)
        if loss is not None and _pulled(triggers, "nan"):
            loss = loss * torch.nan
        return outputs, loss

    def watched_backward(self: StageRunner, *arguments: Any, **options: Any) -> Any:
        if _pulled(triggers, "backward"):
            raise RuntimeError("a fault in a backward")
        return backward(self, *arguments, **options)

    StageRunner._call = watched_call  # type: ignore[method-assign]
    StageRunner.backward = watched_backward  # type: ignore[method-assign]


def _run_out_of_memory() -> None:
    """Ask for more than the system gives."""
    limit_memory(os.getpid(), _MORE_MEMORY_BYTES)
    kept = [torch.ones(_MORE_MEMORY_BYTES * 2**number) for number in range(8)]
    assert not kept, "the system gives more than its limit"
