"""TensorBoard's events of a training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from drlpp.io.files import reporting_disk_errors
from drlpp.runtime.session.measuring import Stretch
from drlpp.runtime.training.training_plan import EpochReport


class TrainingLog:
    """Writes what a training did, as TensorBoard shows it.

    By minibatch ``train/loss`` and ``train/learning_rate``, which is that of the schedule of
    learning rates; by epoch ``eval/loss``, ``eval/score``, ``time/minibatches_per_second``,
    ``time/samples_per_second``, and for every worker ``utilisation/worker_0`` and so on, the part
    of its time that it computed, and ``memory_bytes/worker_0``, the most that it had resident.

    What an earlier attempt wrote about minibatch ``first`` and those behind it is taken back.

    Raises:
        StorageFailure: the disk is full or cannot be written, also in every method.
    """

    def __init__(self, folder: Path, first: int) -> None:
        self._folder = folder
        with reporting_disk_errors(folder):
            self._board = SummaryWriter(str(folder), purge_step=first or None)

    def close(self) -> None:
        """Write what is left."""
        with reporting_disk_errors(self._folder):
            self._board.close()

    def _write(self, values: Mapping[str, float], step: int) -> None:
        with reporting_disk_errors(self._folder):
            for name, value in values.items():
                self._board.add_scalar(name, value, step)

    def minibatch(self, number: int, loss: float, rate: float) -> None:
        """Write loss and learning rate of a minibatch, numbered from the beginning of training."""
        self._write({"train/loss": loss, "train/learning_rate": rate}, number)

    def workers(self, epoch: int, stretch: Stretch) -> None:
        """Write which part of an epoch every worker computed, and its memory."""
        for worker, usage in stretch.workers.items():
            values = {
                f"utilisation/worker_{worker}": usage.busy_seconds / stretch.seconds,
                f"memory_bytes/worker_{worker}": usage.peak_memory_bytes,
            }
            self._write(values, epoch)

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
