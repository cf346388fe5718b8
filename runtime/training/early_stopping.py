"""Ending a training that does not get better."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, ValidationError

from drlpp.errors import InvalidInput
from drlpp.io.documents import Record
from drlpp.runtime.training.training_reports import EpochReport

_EXPECTED = {
    "patience": "expected 1 epoch or more; leave early stopping out to train to the last epoch",
    "min_delta": "expected a number of 0 or more",
    "monitor": "expected score or loss",
}


class EarlyStopping(Record):
    """Training ends after ``patience`` epochs in a row that were no better than the best before.

    Attributes:
        patience: epochs to wait for something better.
        min_delta: what an epoch has to be better by to count as better.
        monitor: ``score`` (more is better) or ``loss`` (less is better), both on held-out data;
            by default the score where the model's task has one. A value that is not a number is
            worse than any other.

    Raises:
        InvalidInput: one of these is out of range.
    """

    patience: int = Field(default=3, ge=1)
    min_delta: float = Field(default=0.0, ge=0)
    monitor: Literal["score", "loss"] | None = None

    def __init__(
        self,
        patience: int = 3,
        min_delta: float = 0.0,
        monitor: Literal["score", "loss"] | None = None,
    ) -> None:
        values: dict[str, Any] = {
            "patience": patience,
            "min_delta": min_delta,
            "monitor": monitor,
        }
        try:
            super().__init__(**values)
        except ValidationError as error:
            first = error.errors()[0]
            field = str(first["loc"][0])
            raise InvalidInput(
                f"early stopping with {field} {first['input']!r}: {_EXPECTED[field]}"
            ) from None

    @classmethod
    def parse(cls, patience: int, /, **options: Any) -> EarlyStopping:
        """Build from options by the names that a user types.

        Raises:
            InvalidInput: there is no such option, or it is out of range.
        """
        known = [name for name in cls.model_fields if name != "patience"]
        for name in options:
            if name not in known:
                raise InvalidInput(
                    f"early stopping has no option {name!r}; it has {' and '.join(known)}"
                )
        return cls(patience, **options)

    def best(self, reports: Sequence[EpochReport]) -> EpochReport:
        """Return the best epoch; the first of those that are equally good.

        Raises:
            InvalidInput: what is monitored is not known.
        """
        best = reports[0]
        for report in reports[1:]:
            if self._goodness(report) > self._goodness(best) + self.min_delta:
                best = report
        return best

    def is_over(self, reports: Sequence[EpochReport]) -> bool:
        """Return whether training ends after these epochs."""
        return bool(reports) and reports[-1].epoch - self.best(reports).epoch >= self.patience

    def _goodness(self, report: EpochReport) -> float:
        monitor = self.monitor or ("loss" if report.score is None else "score")
        value = report.score if monitor == "score" else report.held_out_loss
        if value is None:
            raise InvalidInput(
                f"early stopping monitors the held-out {monitor}, which this training does not "
                "have; give held-out data, and a task with a score to monitor one"
            )
        if math.isnan(value):
            return -math.inf
        return value if monitor == "score" else -value
