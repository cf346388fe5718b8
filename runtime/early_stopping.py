"""Ending a training that does not get better."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from drlpp.errors import InvalidInput
from drlpp.files import Record
from drlpp.runtime.training_reports import EpochReport


class EarlyStopping(Record):
    """Training ends after ``patience`` epochs in a row that were no better than the best before.

    Attributes:
        patience: epochs to wait for something better.
        min_delta: what an epoch has to be better by to count as better.
        monitor: ``score`` (more is better) or ``loss`` (less is better), both on held-out data;
            by default the score where the model's task has one.
    """

    patience: int = Field(default=3, ge=1)
    min_delta: float = Field(default=0.0, ge=0)
    monitor: Literal["score", "loss"] | None = None

    @classmethod
    def after(cls, patience: int) -> EarlyStopping:
        """By the number of epochs alone, as a user types it.

        Raises:
            InvalidInput: it is less than 1.
        """
        if patience < 1:
            raise InvalidInput(f"early stopping after {patience} epochs; at least 1 is needed")
        return cls(patience=patience)

    def best(self, reports: Sequence[EpochReport]) -> EpochReport:
        """The best epoch; the first of those that are equally good.

        Raises:
            InvalidInput: what is monitored is not known.
        """
        best = reports[0]
        for report in reports[1:]:
            if self._goodness(report) > self._goodness(best) + self.min_delta:
                best = report
        return best

    def is_over(self, reports: Sequence[EpochReport]) -> bool:
        """Whether training ends after these epochs."""
        return bool(reports) and reports[-1].epoch - self.best(reports).epoch >= self.patience

    def _goodness(self, report: EpochReport) -> float:
        monitor = self.monitor or ("loss" if report.score is None else "score")
        value = report.score if monitor == "score" else report.held_out_loss
        if value is None:
            raise InvalidInput(
                f"early stopping monitors the held-out {monitor}, which this training does not "
                "have; give held-out data, and a task with a score to monitor one"
            )
        return value if monitor == "score" else -value
