"""TensorBoard's events of a training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from drlpp.io.files import reporting_disk_errors
from drlpp.runtime.ipc.protocol import RunResult
from drlpp.runtime.session.measuring import timeline_of
from drlpp.runtime.training.training_plan import EpochReport
from drlpp.schedule.schedule import Schedule
from drlpp.schedule.timeline import spans_of, time_use


@contextmanager
def training_log(folder: Path, first: int) -> Iterator[TrainingLog]:
    """Provide what writes of a training into ``folder``, from minibatch ``first`` on.

    What an earlier attempt wrote about that one and those behind it is taken back.

    Raises:
        StorageFailure: the disk is full or cannot be written, also in every method.
    """
    with reporting_disk_errors(folder):
        board = SummaryWriter(str(folder), purge_step=first or None)
    try:
        yield TrainingLog(folder, board, first)
    finally:
        with reporting_disk_errors(folder):
            board.close()


class TrainingLog:
    """Writes what a training did, as TensorBoard shows it.

    By minibatch ``train/loss`` and ``train/learning_rate``, which is that of the schedule of
    learning rates; by epoch ``eval/loss``, ``eval/score``, ``time/minibatches_per_second``,
    ``time/samples_per_second``, and for every worker ``utilisation/worker_0`` and so on, the part
    of its time that it computed, and ``memory_bytes/worker_0``, the most that it had resident.
    """

    def __init__(self, folder: Path, board: SummaryWriter, first: int) -> None:
        self._folder = folder
        self._board = board
        self._through = first
        self._beyond: set[int] = set()

    def _write(self, values: Mapping[str, float], step: int) -> None:
        with reporting_disk_errors(self._folder):
            for name, value in values.items():
                self._board.add_scalar(name, value, step)

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
