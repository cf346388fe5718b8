"""A host cut off, or Ray struck there, while two emulated hosts train, and what came of it."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.emulated_cluster import EmulatedCluster
from benchmarks.emulated_cluster.programs import HostProgram
from drlpp.capturing.capture import capture
from drlpp.errors import HostLost, WorkerLost
from drlpp.io.documents import write_document
from drlpp.models.model_reference import ModelReference
from drlpp.specs.cluster import Cluster, Host, Link
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.endurance.faults.strikes import FAULTS, PAUSE_SECONDS
from tests.endurance.faults.trials import (
    BEGINS,
    DATA,
    ENDS,
    GOES_ON,
    Trial,
    halves,
    program_of,
)
from tests.support.processes import process_of

HOSTS = Cluster(
    hosts=(Host(name="host", count=2, accelerators=1, speed=0.4),),
    within_host=Link(bandwidth_bytes_per_second=1.25e9),
    between_hosts=Link(bandwidth_bytes_per_second=1.25e7),
)

_VICTIM = "host-1"
_LONGEST_SECONDS = 300.0
_ENDING_SECONDS = 120.0
_POLL_SECONDS = 0.1


class NetworkTrials:
    """Trainings on two hosts with one accelerator each.

    Args:
        emulated: the hosts, see :data:`HOSTS`.
        folder: for everything that is written.
        epochs: of every training.
    """

    def __init__(self, emulated: EmulatedCluster, folder: Path, epochs: int) -> None:
        self._emulated = emulated
        self._folder = folder
        self._epochs = epochs
        captured = capture(ModelReference.named("tests.support.models.small:perceptron"))
        adam = OptimizerSpec(name="adam", options={"lr": 0.01})
        document = halves(captured, (0, 1), HOSTS, adam)
        self._path = folder / "two-hosts.json"
        write_document(self._path, document)
        job = self._start(folder / "whole")
        begin = time.perf_counter()
        _within(_LONGEST_SECONDS, lambda: ENDS in job.output)
        self._epoch_seconds = (time.perf_counter() - begin) / epochs
        job.wait(_LONGEST_SECONDS)
        self._wanted = _weights(folder / "whole")

    def trial(self, kind: str, seed: int) -> Trial:
        """Cut a host off, or strike Ray there, at a random moment.

        For a moment ("cut", "paused actor") or for good.

        A training continues if it ends with the bits of one that nothing happened to. Where a host
        was lost, it is resumed before.

        Raises:
            RuntimeError: the training does not begin.
            RunFailure: it cannot be resumed.
        """
        out = self._folder / f"network-{kind}-{seed}"
        chance = random.Random(f"network {kind} {seed}")
        job = self._start(out)
        epochs = chance.randrange(1, self._epochs - 1)
        _within(_LONGEST_SECONDS, lambda: job.output.count(GOES_ON) >= epochs)
        time.sleep(chance.uniform(0, self._epoch_seconds))
        begin = time.perf_counter()
        passes = FAULTS[kind].told is None
        mend = self._strike(kind)
        try:
            if passes:
                time.sleep(PAUSE_SECONDS)
                mend()
            limit = _LONGEST_SECONDS if passes else _ENDING_SECONDS
            # The time until the training says it, or ends.
            _within(limit, lambda: f"{HostLost.kind}:" in job.output or job.exit_code is not None)
            seconds = time.perf_counter() - begin
            _within(limit, lambda: job.exit_code is not None)
            _within(limit, self._is_quiet)
            left = self._running()
        finally:
            mend()
        # Ray may print after it what its own processes said last.
        said = [ENDS, *(f"{kind.kind}: " for kind in (HostLost, WorkerLost))]
        lines = job.output.splitlines()
        told = [line for line in lines if line.startswith(tuple(said))] or lines[-1:]
        failure, _, reason = told[-1].partition(": ")
        if failure == ENDS:
            failure = ""
        else:
            # Ray's own processes may be what was struck.
            self._emulated.stop_ray()
            self._start(out).wait(_LONGEST_SECONDS)
        found = _weights(out)
        went_on = all(torch.equal(value, found[name]) for name, value in self._wanted.items())
        return Trial(kind, "training", failure, reason, seconds, went_on, left)

    def _strike(self, kind: str) -> Callable[[], None]:
        """Strike, and return what takes the fault back."""
        if kind in ("cut", "lost"):
            self._emulated.cut(_VICTIM)
            return lambda: self._emulated.restore(_VICTIM)
        what = "/raylet" if "raylet" in kind else "HostActor"
        victim = process_of(self._emulated.ray.nodes[_VICTIM].process.pid, what)
        os.kill(victim, signal.SIGKILL if "killed" in kind else signal.SIGSTOP)

        def go_on() -> None:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGCONT)

        return go_on

    def _start(self, out: Path) -> HostProgram:
        """Return a training that has begun, or that resumes."""
        job = self._emulated.start(program_of(self._path, DATA, self._epochs, out, "auto"))
        if not _within(_LONGEST_SECONDS, lambda: BEGINS in job.output):
            raise RuntimeError(f"{out.name} did not begin; it said: {job.output[-500:]}")
        return job

    def _running(self) -> list[str]:
        """Return descriptions of the workers' processes."""
        return [
            f"process {process} on {host}"
            for host in HOSTS.host_names
            for process in self._emulated.process_ids(host)
        ]

    def _is_quiet(self) -> bool:
        return not self._running()


def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _weights(out: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = torch.load(out / "model.pt", weights_only=True)
    return weights
