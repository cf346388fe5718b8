"""TensorBoard's events of a training."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

from torch.utils.tensorboard import SummaryWriter

from drlpp.io.files import is_storage_error, reporting_disk_errors
from drlpp.runtime.ipc.protocol import RunResult
from drlpp.runtime.session.measuring import timeline_of
from drlpp.runtime.training.training_reports import EpochReport
from drlpp.schedule.schedule import Schedule
from drlpp.schedule.timeline import spans_of, time_use


class TrainingLog:
    """Writes what a training did into ``folder``, as a context manager.

    By minibatch ``train/loss`` and ``train/learning_rate``, which is that of the schedule of
    learning rates; by epoch ``eval/loss``, ``eval/score``, ``time/minibatches_per_second``,
    ``time/samples_per_second``, and for every worker ``utilisation/worker_0`` and so on, the part
    of its time that it computed, and ``memory_bytes/worker_0``, the most that it had resident.

    Args:
        folder: for the events.
        first: minibatch of the training that is written about. What an earlier attempt wrote about
            it and those behind it is taken back.

    Raises:
        StorageFailure: the disk is full or cannot be written, also in every method.
    """

    def __init__(self, folder: Path, first: int) -> None:
        self._folder = folder
        self._through = first
        self._beyond: set[int] = set()
        self._hook = threading.excepthook
        threading.excepthook = self._on_thread_failure
        try:
            with self._writing():
                self._board = SummaryWriter(str(folder), purge_step=first or None)
        except BaseException:
            threading.excepthook = self._hook
            raise

    def _on_thread_failure(self, failure: threading.ExceptHookArgs) -> None:
        # TensorBoard's thread raises what the next call raises again.
        if failure.exc_value is None or not is_storage_error(failure.exc_value):
            self._hook(failure)

    def _writing(self) -> AbstractContextManager[None]:
        return reporting_disk_errors(self._folder)

    def _write(self, values: Mapping[str, float], step: int) -> None:
        with self._writing():
            for name, value in values.items():
                self._board.add_scalar(name, value, step)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            with self._writing():
                self._board.close()
        finally:
            threading.excepthook = self._hook

    def minibatches(self, losses: Mapping[int, float], rates: Mapping[int, float]) -> None:
        """Write losses and learning rates of minibatches, numbered from the beginning of training.

        What has been written before is left out.
        """
        for step, loss in sorted(losses.items()):
            if step >= self._through and step not in self._beyond:
                self._write({"train/loss": loss, "train/learning_rate": rates[step]}, step)
                self._beyond.add(step)
        while self._through in self._beyond:
            self._beyond.remove(self._through)
            self._through += 1

    def workers(self, epoch: int, schedule: Schedule, results: Mapping[int, RunResult]) -> None:
        """Write where the time of every worker went in an epoch, and its memory."""
        timeline = timeline_of(schedule, results)
        if timeline:
            end = max(timed.end for timed in timeline)
            for use in time_use(spans_of(timeline), 0.0, end):
                self._write({f"utilisation/worker_{use.worker}": use.utilisation}, epoch)
        for worker, result in results.items():
            self._write({f"memory_bytes/worker_{worker}": result.peak_memory_bytes}, epoch)

    def epoch(self, report: EpochReport, batch_size: int) -> None:
        """Write the results of an epoch, with minibatches of ``batch_size`` samples."""
        values = {
            "eval/loss": report.held_out_loss,
            "eval/score": report.score,
            "time/minibatches_per_second": report.minibatches_per_second,
            "time/samples_per_second": batch_size * report.minibatches_per_second,
        }
        known = {name: value for name, value in values.items() if value is not None}
        self._write(known, report.epoch)
