"""What can go wrong on a worker, made to happen at a chosen moment.

Some faults come from outside: signals, limits on memory and files, and strangers at every port.
Others come from inside: :class:`FaultyAdam` is Adam, and has every worker that uses it look for
*triggers*, files that :func:`pull` makes. The first worker to reach the place that a trigger names
removes it and fails there, so that a fault happens once, on whichever worker is first.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import psutil
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
from tests.support.processes import children_of, workers_of

EXPECTED: dict[str, type[RunFailure]] = {
    "killed": WorkerLost,
    "server": WorkerLost,
    "frozen": TrialTimeout,
    "memory": OutOfMemory,
    "leak": OutOfMemory,
    "slow": TrialTimeout,
    "forward": ModelError,
    "backward": ModelError,
    "optimizer": ModelError,
    "nan": NotFinite,
    "disk": StorageFailure,
}
"""What a training says of every fault."""

SURVIVED = ("paused", "frozen server", "frozen tracker", "strangers")
"""Faults that nobody has to hear of: work continues as if there had been none."""

SIGNALS = {
    "killed": signal.SIGKILL,
    "server": signal.SIGKILL,
    "frozen": signal.SIGSTOP,
    "paused": signal.SIGSTOP,
    "frozen server": signal.SIGSTOP,
    "frozen tracker": signal.SIGSTOP,
}
PAUSE_SECONDS = 2.0
_FILE_LIMIT_BYTES = 512
_MORE_MEMORY_BYTES = 2**20
_LEAKED_BYTES = 8 * 2**20
_LEAKS = 16
_SLOW_SECONDS = 20.0
"""More than trials have patience for."""

_strangers: list[socket.socket] = []


def _server_of_this_process() -> int:
    """Return the process that forks the workers."""
    return next(child for child in children_of(os.getpid()) if children_of(child))


def strike(fault: str, triggers: Path, chance: random.Random) -> bool:
    """Make ``fault`` happen now, or as soon as a worker gets to its place.

    Returns:
        False if there is no worker to strike.
    """
    if fault not in SIGNALS and fault not in ("disk", "strangers"):
        pull(triggers, fault)
        return True
    workers = workers_of(os.getpid())
    if not workers:
        return False
    match fault:
        case "disk":
            # The controller's disk or a worker's.
            _forbid_files(chance.choice([*workers, os.getpid()]))
        case "strangers":
            _strangers.extend(bother([os.getpid(), *workers], chance))
        case _:
            victim = _victim_of(fault, workers, chance)
            os.kill(victim, SIGNALS[fault])
            if fault == "paused":
                time.sleep(PAUSE_SECONDS)
                os.kill(victim, signal.SIGCONT)
    return True


def _victim_of(fault: str, workers: Sequence[int], chance: random.Random) -> int:
    if "server" in fault:
        return _server_of_this_process()
    if "tracker" in fault:
        tracker: Any = resource_tracker._resource_tracker
        return int(tracker._pid)
    return chance.choice(workers)


def _forbid_files(process: int) -> None:
    """Make writing beyond a few bytes fail from now on, as on a full disk."""
    _, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (_FILE_LIMIT_BYTES, hard))


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


def pull(triggers: Path, place: str) -> None:
    """Make the next worker that gets to ``place`` fail there."""
    (triggers / place).touch()


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
    """Adam, with a worker that fails where a trigger says so.

    Args:
        params: as Adam's.
        lr: as Adam's.
        triggers: the folder of triggers; none by default.
    """

    def __init__(self, params: Iterable[Any], lr: float = 0.01, triggers: str = "") -> None:
        super().__init__(params, lr=lr)
        self._triggers = Path(triggers)
        if triggers and multiprocessing.parent_process() is not None:
            _watch_passes(Path(triggers))

    def step(self, closure: Any = None) -> Any:
        """Make one update, unless "optimizer" was pulled."""
        if multiprocessing.parent_process() is not None and _pulled(self._triggers, "optimizer"):
            raise RuntimeError("a fault in the optimizer")
        return super().step(closure)


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
    leaked: list[Tensor] = []

    def watched_call(self: StageRunner, *arguments: Any) -> Any:
        if _pulled(triggers, "forward"):
            nn.functional.embedding(torch.tensor([99]), torch.zeros(2, 2))
        if _pulled(triggers, "memory"):
            _run_out_of_memory()
        if _pulled(triggers, "slow"):
            time.sleep(_SLOW_SECONDS)
        if leaked or _pulled(triggers, "leak"):
            _leak(leaked)
        outputs, loss = call(self, *arguments)
        if loss is not None and _pulled(triggers, "nan"):
            loss = loss * torch.nan
        return outputs, loss

    def watched_backward(self: StageRunner, *arguments: Any, **options: Any) -> Any:
        if _pulled(triggers, "backward"):
            _Failing.apply(torch.zeros(1, requires_grad=True)).backward()
        return backward(self, *arguments, **options)

    _replace("_call", watched_call)
    _replace("backward", watched_backward)


def _replace(name: str, function: Callable[..., Any]) -> None:
    setattr(StageRunner, name, function)


def _leak(leaked: list[Tensor]) -> None:
    """Keep some memory, of which there is not much."""
    if not leaked:
        _limit_memory(_LEAKS * _LEAKED_BYTES)
    leaked.append(torch.ones(_LEAKED_BYTES // 4))


def _limit_memory(more_bytes: int) -> None:
    limit = psutil.Process().memory_info().data + more_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _run_out_of_memory() -> None:
    """Ask for more than the system gives."""
    _limit_memory(_MORE_MEMORY_BYTES)
    kept = [torch.ones(_MORE_MEMORY_BYTES * 2**number) for number in range(8)]
    assert not kept, "the system gives more than its limit"


class _Failing(torch.autograd.Function):
    """Raises in the backward pass."""

    @staticmethod
    def forward(_context: Any, value: Tensor) -> Tensor:
        """Copy the value."""
        return value.clone()

    @staticmethod
    def backward(_context: Any, *_gradients: Tensor) -> Tensor:
        """Raise, as a fault in a backward."""
        raise RuntimeError("a fault in a backward")
