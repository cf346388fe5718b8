"""How good a model is after how much training: the held-out loss over seconds and minibatches."""

from __future__ import annotations

import math
from itertools import pairwise

from pydantic import Field

from drlpp.io.documents import Record
from drlpp.io.quantities import Count


class Point(Record):
    """One evaluation.

    Attributes:
        minibatches: that were trained on before it.
        seconds: that these took, without evaluations and pauses.
        loss: on the held-out samples; None if it is not finite.
        score: on them, if the model has one.
    """

    minibatches: Count
    seconds: float = Field(ge=0, allow_inf_nan=False)
    loss: float | None = None
    score: float | None = None

    @property
    def comparable_loss(self) -> float:
        """The loss, infinite if it is not finite."""
        return math.inf if self.loss is None else self.loss


class Curve(Record):
    """The evaluations of one training, from the one before it.

    Attributes:
        points: in the order of time.
        failure: why training ended early.
    """

    points: tuple[Point, ...] = Field(min_length=1)
    failure: str | None = None

    @property
    def last(self) -> Point:
        """The last evaluation."""
        return self.points[-1]

    @property
    def seconds(self) -> float:
        """How long training has taken so far."""
        return self.last.seconds

    @property
    def minibatches(self) -> int:
        """How many minibatches were trained on so far."""
        return self.last.minibatches

    def seconds_after(self, minibatches: int) -> float:
        """Return how long it took to so many minibatches, or to the first evaluation after them."""
        return min((p.seconds for p in self.points if p.minibatches >= minibatches), default=0.0)

    def loss_after(self, minibatches: int) -> float:
        """Return the loss after so many minibatches, or at the first evaluation after them.

        It is infinite if training failed before.
        """
        found = (p.comparable_loss for p in self.points if p.minibatches >= minibatches)
        return next(found, math.inf)

    def seconds_to(self, loss: float) -> float | None:
        """Return when ``loss`` was reached first, between two evaluations on a straight line."""
        return self._crossing(loss, [point.seconds for point in self.points])

    def minibatches_to(self, loss: float) -> float | None:
        """Return after how many minibatches ``loss`` was reached first, in the same way."""
        return self._crossing(loss, [float(point.minibatches) for point in self.points])

    def _crossing(self, loss: float, places: list[float]) -> float | None:
        losses = [point.comparable_loss for point in self.points]
        if losses[0] <= loss:
            return places[0]
        for (begin, end), (before, after) in zip(pairwise(places), pairwise(losses), strict=True):
            if after <= loss:
                # Down from an infinite loss there is no line.
                share = (before - loss) / (before - after) if math.isfinite(before) else 1.0
                return begin + share * (end - begin)
        return None

    def loss_at(self, seconds: float) -> float:
        """Return the loss after so many seconds, between two evaluations on a straight line.

        Behind the last evaluation it is the last one's; infinite if training failed before.
        """
        if self.failure is not None and seconds > self.seconds:
            return math.inf
        for before, after in pairwise(self.points):
            if seconds <= after.seconds:
                share = (seconds - before.seconds) / max(after.seconds - before.seconds, 1e-12)
                if share <= 0 or not math.isfinite(after.comparable_loss - before.comparable_loss):
                    return (before if share <= 0 else after).comparable_loss
                return (1 - share) * before.comparable_loss + share * after.comparable_loss
        return self.last.comparable_loss
