"""The processes that train with torch's own means, next to a session's workers."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Self

import torch.distributed as dist

from benchmarks.torch_training import BaselineResult, BaselineRun, baseline_main
from drlpp.errors import TrialTimeout, WorkerLost
from drlpp.runtime.device.emulation import available_cores, cores_for

_GRACE_SECONDS = 5.0


@dataclass
class BaselineProcesses:
    """Processes that take run after run; use it as a context manager.

    Attributes:
        speeds: of every accelerator; each is a process.
        timeout_seconds: for one run.
    """

    speeds: Sequence[float]
    timeout_seconds: float = 300.0
    _processes: list[BaseProcess] = field(default_factory=list)
    _pipes: list[Connection] = field(default_factory=list)

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        size = len(self.speeds)
        here = [("localhost", available_cores())] * size
        for rank, core in enumerate(cores_for(self.speeds, here)):
            ours, theirs = context.Pipe()
            arguments = (rank, size, self._store.port, self.speeds[rank], core, theirs)
            process = context.Process(target=baseline_main, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(0 if error else _GRACE_SECONDS)
            process.kill()
            process.join()

    @property
    def process_ids(self) -> list[int]:
        """Of the processes."""
        return [process.pid for process in self._processes if process.pid is not None]

    def run(self, run: BaselineRun) -> list[BaselineResult]:
        """Run, and return what every process saw.

        Raises:
            RunFailure: a process ended or did not answer; none is to be used after that.
        """
        results = []
        for rank, pipe in enumerate(self._pipes):
            with self._telling_of_loss(run, rank):
                pipe.send(run)
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(self.timeout_seconds):
                raise TrialTimeout(
                    f"{run.name}: process {rank} did not answer within {self.timeout_seconds:.0f} s"
                )
            with self._telling_of_loss(run, rank):
                results.append(pipe.recv())
        return results

    @contextmanager
    def _telling_of_loss(self, run: BaselineRun, rank: int) -> Iterator[None]:
        try:
            yield
        # At its end, or, where it has left something unread or is written to, a broken connection.
        except (EOFError, ConnectionError):
            self._processes[rank].join(_GRACE_SECONDS)
            code = self._processes[rank].exitcode
            raise WorkerLost(
                f"{run.name}: process {rank} ended with exit code {code}; see above why"
            ) from None
