"""Plain PyTorch as a contender: a process that takes turns with the workers."""

from __future__ import annotations

import pickle
import tempfile
from contextlib import suppress
from multiprocessing import connection as mp_connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import Self

from drlpp.capturing.capture import CapturedModel
from drlpp.comparison.plain_process import PlainRun, plain_main, shapes_of
from drlpp.errors import RunFailure, StorageFailure, TrialTimeout, WorkerLost
from drlpp.io.disk_errors import reporting_disk_errors
from drlpp.placement.measurement import FailedMeasurement, Measurement, Outcome
from drlpp.runtime.device.emulation import available_cores, cores_for
from drlpp.runtime.hosts.fork_server import (
    describe_exit,
    forking_context,
    main_module_left_out,
    warm_up,
)
from drlpp.runtime.ipc.protocol import Channel
from drlpp.runtime.session.session import ClusterSession
from drlpp.schedule.method import Method

_TASK_FILE = "plain-task.pickle"


class PlainPyTorch:
    """Measures the user's module in an ordinary loop, in a process on the controller's host.

    The process is forked from the server that workers are forked from, as fresh as they are, lives
    from the first measurement to :meth:`close`, and sleeps when it is not its turn. Where workers
    emulate slower accelerators it computes on one of the fastest of these, with one thread.

    Args:
        session: with the model, the optimizer and the device.
    """

    def __init__(self, session: ClusterSession) -> None:
        self._session = session
        self._process: ForkServerProcess | None = None
        self._channel: Channel | None = None
        self._task_file: str | None = None
        self._problem = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def process_id(self) -> int | None:
        """The number of the process, if it runs."""
        return None if self._process is None else self._process.pid

    def measure(self, threads: int | None, minibatches: int, method: Method) -> Outcome:
        """Measure seconds per minibatch in steady state; what goes wrong is a failed measurement.

        Args:
            threads: of torch; None leaves them as they are, for GPUs.
            minibatches: over how many.
            method: precision, clipping and accumulation are taken from it.

        Raises:
            StorageFailure: there is no room for the session's files.
        """
        try:
            self._start()
            assert self._channel is not None
            with suppress(BrokenPipeError):
                self._channel.send(self._run(threads, minibatches, method))
            return self._answer()
        except StorageFailure:
            raise
        except RunFailure as failure:
            self.close()
            return FailedMeasurement(failure=failure.kind, reason=str(failure))
        except BaseException:
            # It may be in the middle of a run.
            self.close()
            raise

    def close(self) -> None:
        """End the process; the next measurement would start another."""
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            self._process.kill()
            self._process.join(self._session.time_limits.end_seconds)
            with suppress(ValueError):
                self._process.close()
        self._process = self._channel = None

    def _start(self) -> None:
        if self._process is not None:
            return
        if self._task_file is None and not self._problem:
            self._write_task(self._session.captured)
        warm_up()
        folder = str(self._session.folder)
        context = forking_context()
        ours, theirs = context.Pipe()
        process = context.Process(
            target=plain_main,
            args=(
                Channel(theirs, folder),
                self._session.device.value,
                self._session.time_limits,
            ),
            name="drlpp-plain-pytorch",
            daemon=True,
        )
        try:
            with main_module_left_out():
                process.start()
        except (EOFError, ConnectionError, FileNotFoundError):
            raise WorkerLost(
                "the process of plain PyTorch could not be started: the server that it is forked "
                "from has ended"
            ) from None
        finally:
            theirs.close()
        self._process, self._channel = process, Channel(ours, folder)

    def _write_task(self, captured: CapturedModel) -> None:
        """Put the task where the process finds it, or note why that cannot be."""
        try:
            content = pickle.dumps(captured.task)
        except Exception as error:
            self._problem = f"{type(error).__name__}: {error}"
            return
        with reporting_disk_errors(Path(tempfile.gettempdir())):
            (self._session.folder / _TASK_FILE).write_bytes(content)
        self._task_file = _TASK_FILE

    def _run(self, threads: int | None, minibatches: int, method: Method) -> PlainRun:
        session = self._session
        speed = max(session.speeds[worker] for worker in session.present)
        cores = tuple(available_cores())
        (core,) = cores_for([speed], [("here", cores)]) if speed < 1 else [None]
        return PlainRun(
            task_file=self._task_file,
            problem=self._problem,
            reference=session.captured.reference,
            shapes=shapes_of(session.captured.task.module),
            seed=session.seed,
            method=method,
            optimizer=session.optimizer,
            threads=threads,
            minibatches=minibatches,
            speed=speed,
            core=core,
        )

    def _answer(self) -> Outcome:
        """Wait for the outcome, as long as there are signs of life."""
        process, channel = self._process, self._channel
        assert process is not None
        assert channel is not None
        limits = self._session.time_limits
        patience = limits.answer_seconds or limits.first_answer_seconds
        while True:
            ready = mp_connection.wait([channel.connection, process.sentinel], patience)
            if not ready:
                raise TrialTimeout(
                    f"plain PyTorch gave no sign of life for {patience:.0f} s; if a minibatch "
                    "takes longer, give a longer time limit (--timeout, timeout_seconds)"
                )
            with suppress(EOFError, ConnectionResetError):
                if channel.connection in ready:
                    message = channel.receive()
                    if isinstance(message, Measurement | FailedMeasurement):
                        return message
                    continue
            process.join(limits.end_seconds)
            raise WorkerLost(f"the process of plain PyTorch {describe_exit(process.exitcode)}")
