"""Races to a loss: the file of what was trained, how a race ended, and what it says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, NamedTuple

import numpy
from pydantic import Field, model_validator

from drlpp.io.documents import Document, Record
from drlpp.io.quantities import Count
from drlpp.racing.contenders import Contender
from drlpp.racing.verdict import Verdict, judge

USUAL = 0
"""The first candidate is plain PyTorch; or where that has not got the memory, torch's data
parallelism with the same updates."""


class Point(Record):
    """One evaluation.

    Attributes:
        minibatches: that were trained on before it.
        seconds: that these took, without evaluations and pauses.
        loss: on the held-out samples; None if it is not finite.
    """

    minibatches: Count
    seconds: float = Field(ge=0, allow_inf_nan=False)
    loss: float | None = None

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
    def seconds(self) -> float:
        """How long training has taken so far."""
        return self.points[-1].seconds

    @property
    def minibatches(self) -> int:
        """How many minibatches were trained on so far."""
        return self.points[-1].minibatches

    def after(self, minibatches: int) -> Point | None:
        """Return the first evaluation after so many minibatches; None if training failed before."""
        return next((p for p in self.points if p.minibatches >= minibatches), None)

    def seconds_to(self, loss: float) -> float | None:
        """Return when ``loss`` was reached first, between two evaluations on a straight line."""
        return self._crossing(loss, "seconds")

    def minibatches_to(self, loss: float) -> float | None:
        """Return after how many minibatches ``loss`` was reached first, in the same way."""
        return self._crossing(loss, "minibatches")

    def _crossing(self, loss: float, of: str) -> float | None:
        for before, after in pairwise((self.points[0], *self.points)):
            if after.comparable_loss <= loss:
                fallen = before.comparable_loss - after.comparable_loss
                # Down from an infinite loss there is no line.
                share = (before.comparable_loss - loss) / fallen if 0 < fallen < math.inf else 1.0
                begin, end = getattr(before, of), getattr(after, of)
                return float(begin + share * (end - begin))
        return None

    def loss_at(self, seconds: float) -> float:
        """Return the loss after so many seconds, between two evaluations on a straight line.

        Behind the last evaluation it is the last one's; infinite if training failed before.
        """
        if self.failure is not None and seconds > self.seconds:
            return math.inf
        losses = [point.comparable_loss for point in self.points]
        return float(numpy.interp(seconds, [point.seconds for point in self.points], losses))


class Training(NamedTuple):
    """One training: of which candidate, with which learning rate, and in which order of samples."""

    candidate: int
    rate: float
    seed: int = 0


class TrainingRun(Record):
    """One training of a race: a candidate's number, its learning rate, its order of samples."""

    candidate: Count
    rate: float = Field(gt=0, allow_inf_nan=False)
    seed: Count = 0
    curve: Curve


class TrainingRace(Document):
    """A race to a loss, of one model on the same accelerators.

    Attributes:
        model, data, optimizer: their names.
        minibatches: of an epoch.
        every: minibatches between two evaluations.
        candidates: what takes part; the first is :data:`USUAL`.
        target_loss: what has to be reached first, on held-out samples.
        epochs: without a target, it is the loss of the first candidate after so many epochs.
        limit_seconds: of training, after which every candidate stops; 600 by default, or five times
            what the first takes to the loss that it sets.
        rates: learning rates that are tried, ascending, the optimizer's in the middle.
        rate_of: the number of the candidate whose best learning rate each one takes; its own if it
            tries rates itself, as all do without this.
        finals: trainings of a finalist.
        runs: what was trained so far.
    """

    kind: ClassVar[str] = "training race"

    model: str
    data: str
    optimizer: str
    minibatches: int = Field(ge=1)
    every: int = Field(ge=1)
    candidates: tuple[Contender, ...] = Field(min_length=1)
    target_loss: float | None = Field(default=None, allow_inf_nan=False)
    epochs: int = Field(default=3, ge=1)
    limit_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    rates: tuple[float, ...] = Field(min_length=1)
    rate_of: tuple[Count, ...] = ()
    finals: int = Field(ge=1)
    runs: tuple[TrainingRun, ...] = ()

    @model_validator(mode="after")
    def _fits_together(self) -> TrainingRace:
        if not self.candidates[USUAL].is_usual:
            raise ValueError("the first candidate of a race has to make plain PyTorch's updates")
        return self

    @property
    def usual(self) -> str:
        """What the first candidate is called."""
        return self.candidates[USUAL].found_by

    @property
    def curves(self) -> dict[Training, Curve]:
        """The curve of every training so far."""
        return {Training(run.candidate, run.rate, run.seed): run.curve for run in self.runs}

    def with_curve(self, training: Training, curve: Curve) -> TrainingRace:
        """Return a copy that knows one more curve, or a longer one."""
        curves = self.curves | {training: curve}
        runs = (TrainingRun(**of._asdict(), curve=found) for of, found in curves.items())
        return self.model_copy(update={"runs": tuple(runs)})


class Final(NamedTuple):
    """What a finalist's training cost; at least that, if it did not reach the loss."""

    cost: float
    arrived: bool


@dataclass
class RaceEnd:
    """How a race ended; candidates are numbered from 0.

    Attributes:
        race: that has ended.
        loss: that was to be reached first; the first candidate may have set it.
        limit_seconds: of training, after which every candidate stops.
        rates: every candidate's best learning rate; None if all have failed.
        ended: why a candidate did not reach the loss in the halving.
        costs: seconds to the loss in the halving, of those that reached it.
        finalists: the first first, by the halving.
        finals: of each of these, for each order of samples.
    """

    race: TrainingRace
    loss: float
    limit_seconds: float
    rates: dict[int, float | None] = field(default_factory=dict)
    ended: dict[int, str] = field(default_factory=dict)
    costs: dict[int, float] = field(default_factory=dict)
    finalists: list[int] = field(default_factory=list)
    finals: dict[int, list[Final]] = field(default_factory=dict)

    def finals_of(self, candidate: int) -> list[Final]:
        """Return a finalist's trainings; that of the halving if it was the only finalist."""
        return self.finals[candidate] or [Final(self.costs[candidate], True)]

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on the finalists; None if no candidate reached the loss."""
        candidates = self.race.candidates
        costs = [[final.cost for final in self.finals_of(number)] for number in self.finalists]
        return judge(
            [candidates[number] for number in self.finalists],
            costs,
            candidates[USUAL].method,
            "reached the loss",
        )

    @property
    def winner(self) -> int | None:
        """The winner's number; None if no candidate reached the loss."""
        verdict = self.verdict
        return None if verdict is None else self.finalists[verdict.fastest]

    @property
    def winning(self) -> Training | None:
        """The winner's training in the halving; None if no candidate reached the loss."""
        number = self.winner
        rate = None if number is None else self.rates[number]
        return None if number is None or rate is None else Training(number, rate)

    def lines(self) -> Iterator[str]:
        """Yield what the race says, in sentences: the gain first, then how finalists compare."""
        goal, verdict = f"held-out loss {self.loss:.4g}", self.verdict
        if verdict is None:
            yield f"no candidate reached {goal} within {self.limit_seconds:.3g} s of training"
            return
        several = len(self.finalists) > 1
        if several:
            yield from verdict.gain_lines()
        elif self.winner == USUAL:
            use = self.race.candidates[USUAL].as_torch_has_it
            yield f"use {use}: no other candidate reached the loss"
        else:
            yield "no other candidate reached the loss"
        yield f"the first at {goal}: {verdict.told(verdict.fastest)}"
        for place, candidate in enumerate(self.finalists):
            if place != verdict.fastest and {place, verdict.fastest} != set(verdict.gain_pair):
                yield verdict.comparison(verdict.fastest, place)
            missed = sum(not final.arrived for final in self.finals_of(candidate))
            if missed:
                of = f"{missed} of {self.race.finals} trainings"
                yield f"{verdict.told(place)} did not reach it in {of}"
        if several and USUAL not in self.finalists:
            yield f"{self.race.usual} did not reach it"
