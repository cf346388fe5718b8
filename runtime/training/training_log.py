"""TensorBoard's events of a training."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

from torch.utils.tensorboard import SummaryWriter

from drlpp.io.disk_errors import reporting_disk_errors
from drlpp.io.run_folder import BY_TIME_NAME
from drlpp.runtime.ipc.protocol import RunResult
from drlpp.runtime.session.measured_runs import timeline_of
from drlpp.runtime.training.training_reports import EpochReport
from drlpp.schedule.schedule import Schedule
from drlpp.timeline.spans import spans_of, time_use

_LAYOUT = {
    "training": {
        "loss": ["Multiline", ["train/loss", "eval/loss"]],
        "loss over milliseconds": ["Multiline", ["loss_by_millisecond/.*"]],
        "speed": ["Multiline", ["time/minibatches_per_second"]],
    },
    "workers": {
        "utilisation": ["Multiline", ["utilisation/.*"]],
        "memory": ["Multiline", ["memory_bytes/.*"]],
    },
}
"""Which charts TensorBoard's page of custom scalars shows together."""


class TrainingLog:
    """Writes what a training did into ``folder``, as a context manager.

    By minibatch ``train/loss`` and ``train/learning_rate``, which is that of the schedule of
    learning rates; by epoch ``eval/loss``, ``eval/score``, ``time/minibatches_per_second``,
    ``time/samples_per_second``, and for every worker ``utilisation/worker_0`` and so on, the part
    of its time that it computed, ``bubble/worker_0``, the rest, and ``memory_bytes/worker_0``, the
    most that it had resident. In the folder ``by_time``
    ``loss_by_millisecond/train`` and ``…/held_out`` are the losses of epochs, by the milliseconds
    that training took without evaluations.

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
        with self._writing():
            self._board = SummaryWriter(str(folder), purge_step=first or None)
            self._board.add_custom_scalars(_LAYOUT)

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
        with self._writing():
            self._board.close()

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
                used = {
                    f"utilisation/worker_{use.worker}": use.utilisation,
                    f"bubble/worker_{use.worker}": use.bubble,
                }
                self._write(used, epoch)
        for worker, result in results.items():
            self._write({f"memory_bytes/worker_{worker}": result.peak_memory_bytes}, epoch)

    def epoch(self, reports: Sequence[EpochReport], batch_size: int, minibatches: int) -> None:
        """Write the results of the last epoch.

        Args:
            reports: of all epochs so far.
            batch_size: samples of a minibatch.
            minibatches: of an epoch.
        """
        report = reports[-1]
        values = {
            "eval/loss": report.held_out_loss,
            "eval/score": report.score,
            "time/minibatches_per_second": report.minibatches_per_second,
            "time/samples_per_second": batch_size * report.minibatches_per_second,
        }
        known = {name: value for name, value in values.items() if value is not None}
        self._write(known, report.epoch)
        self._losses_over_time(reports, minibatches)

    def _losses_over_time(self, reports: Sequence[EpochReport], minibatches: int) -> None:
        """Write the losses of all epochs anew, apart: other steps than these are taken back."""
        folder = self._folder / BY_TIME_NAME
        with self._writing():
            shutil.rmtree(folder, ignore_errors=True)
            with SummaryWriter(str(folder)) as board:
                seconds = 0.0
                for report in reports:
                    seconds += minibatches / report.minibatches_per_second
                    step = round(1e3 * seconds)
                    board.add_scalar("loss_by_millisecond/train", report.loss, step)
                    if report.held_out_loss is not None:
                        held_out = report.held_out_loss
                        board.add_scalar("loss_by_millisecond/held_out", held_out, step)
