"""Races to a loss: the file of what was trained, the course of a race, and what it says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field, model_validator

from drlpp.errors import RunFailure
from drlpp.io.documents import Document, Record
from drlpp.io.quantities import Count
from drlpp.racing.contenders import Contender
from drlpp.racing.curves import Curve
from drlpp.racing.halving import (
    PLAIN_NUMBER,
    Final,
    Goal,
    Race,
    Result,
    Rules,
    Train,
    Training,
    best_rate,
)
from drlpp.racing.race import winner_of
from drlpp.racing.verdict import (
    Entrant,
    Meter,
    Verdict,
    comparison_text,
    gain_lines,
    gain_pair,
    judge,
)

_SEARCHED_EVALUATIONS = 3
"""A learning rate is tried until this many evaluations."""

_LIMIT = 5.0
"""No candidate trains longer than this many times what plain PyTorch takes to the loss it sets."""

_USUAL_LIMIT_SECONDS = 600.0


class TrainingRun(Record):
    """One training of a race: a candidate's number, its learning rate, its order of samples."""

    candidate: Count
    rate: float = Field(gt=0, allow_inf_nan=False)
    seed: Count = 0
    curve: Curve

    @property
    def training(self) -> Training:
        """What tells it from the others."""
        return Training(self.candidate, self.rate, self.seed)


class TrainingRace(Document):
    """A race to a loss, of one model on the same accelerators.

    Attributes:
        model, data, optimizer: their names.
        minibatches: of an epoch.
        every: minibatches between two evaluations.
        candidates: what takes part; plain PyTorch is the first.
        target_loss: what has to be reached first.
        target_seconds: in files of earlier versions, after how long the least loss won.
        epochs: without a target, it is the least loss of plain PyTorch in so many epochs.
        limit_seconds: of training, after which every candidate stops.
        rates: learning rates that every candidate tries, the race's optimizer's in the middle.
        finals: trainings of a finalist.
        halving: whether candidates end before the loss.
        runs: what was trained so far.
    """

    kind: ClassVar[str] = "training race"
    former_fields: ClassVar[frozenset[str]] = frozenset({"absent"})

    model: str
    data: str
    optimizer: str
    minibatches: int = Field(ge=1)
    every: int = Field(ge=1)
    candidates: tuple[Contender, ...] = Field(min_length=1)
    target_loss: float | None = Field(default=None, allow_inf_nan=False)
    target_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    epochs: int = Field(default=3, ge=1)
    limit_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    rates: tuple[float, ...] = Field(min_length=1)
    finals: int = Field(ge=1)
    halving: bool = True
    runs: tuple[TrainingRun, ...] = ()

    @model_validator(mode="after")
    def _fits_together(self) -> TrainingRace:
        for run in self.runs:
            if run.candidate >= len(self.candidates):
                last = len(self.candidates) - 1
                raise ValueError(f"a run is of candidate {run.candidate}; the last is {last}")
        if self.candidates[0].placement is not None:
            raise ValueError("the first candidate of a race has to be plain PyTorch")
        return self

    @property
    def curves(self) -> dict[Training, Curve]:
        """The curve of every training so far."""
        return {run.training: run.curve for run in self.runs}

    @property
    def is_former(self) -> bool:
        """Whether it is a race to the least loss after a time, or one of several optimizers.

        Earlier versions had such races.
        """
        several = any(one.optimizer is not None for one in self.candidates)
        return several or self.target_seconds is not None

    def with_curve(self, training: Training, curve: Curve) -> TrainingRace:
        """Return a copy that knows one more curve, or a longer one."""
        curves = self.curves | {training: curve}
        runs = (TrainingRun(**of._asdict(), curve=found) for of, found in curves.items())
        return self.model_copy(update={"runs": tuple(runs)})


@dataclass(frozen=True)
class RaceEnd:
    """How a race ended.

    Attributes:
        goal: what won; a loss that plain PyTorch has set included.
        result: the race's.
    """

    goal: Goal
    result: Result

    def finals_of(self, candidate: int) -> list[Final]:
        """Return a finalist's trainings; that of the halving if it was the only finalist."""
        return self.result.finals[candidate] or [Final(self.result.costs[candidate], True)]

    @property
    def winner(self) -> int | None:
        """The winner's number; None if no candidate reached the loss."""
        costs = [[final.cost for final in self.finals_of(c)] for c in self.result.finalists]
        place = winner_of(costs)
        return None if place is None else self.result.finalists[place]


def run_race(
    race: TrainingRace,
    train: Train,
    on_step: Callable[[str], None] = lambda step: None,
    forget: Callable[[Training], None] = lambda training: None,
) -> RaceEnd:
    """Run a race to its end: with the same curves it always ends the same way.

    Without a target, plain PyTorch, the first candidate, sets the loss to be reached.

    Raises:
        RunFailure: plain PyTorch fails, and has to set the loss.
    """
    wanted = min(_SEARCHED_EVALUATIONS * race.every, race.minibatches)
    rules = Rules(race.rates, wanted, race.finals, race.halving)
    goal = _goal(race, rules, train, on_step)
    count = len(race.candidates)
    course = Race(count, train, goal, rules, on_step, forget)
    return RaceEnd(goal, course.run())


def _goal(race: TrainingRace, rules: Rules, train: Train, on_step: Callable[[str], None]) -> Goal:
    if race.target_loss is not None:
        return Goal(race.target_loss, race.limit_seconds or _USUAL_LIMIT_SECONDS)
    on_step("learning rates: plain PyTorch")
    rate = best_rate(PLAIN_NUMBER, train, rules)
    if rate is None:
        failure = train(Training(PLAIN_NUMBER, rules.rates[0]), lambda curve: True).failure
        raise RunFailure(
            f"plain PyTorch, which would set the loss to be reached, cannot train the model: "
            f"{failure}; give --target-loss (target_loss)"
        )
    on_step(f"the loss that plain PyTorch reaches in {race.epochs} epoch{'s' * (race.epochs > 1)}")
    wanted = race.epochs * race.minibatches
    curve = train(Training(PLAIN_NUMBER, rate), lambda curve: curve.minibatches >= wanted)
    loss = curve.loss_after(wanted)
    if not math.isfinite(loss):
        raise RunFailure(f"plain PyTorch, which sets the loss, failed: {curve.failure}")
    return Goal(loss, race.limit_seconds or _LIMIT * curve.seconds_after(wanted))


def replay(race: TrainingRace) -> RaceEnd | None:
    """Return how a race in a file ended; None if it has not, or is of a former kind."""
    curves = race.curves

    def known(training: Training, enough: Callable[[Curve], bool]) -> Curve:
        curve = curves.get(training)
        if curve is None or not (curve.failure or enough(curve)):
            raise _NotTrainedYet
        return curve

    try:
        return None if race.is_former else run_race(race, known)
    except _NotTrainedYet:
        return None


class _NotTrainedYet(Exception):
    pass


def race_lines(race: TrainingRace, end: RaceEnd | None) -> Iterator[str]:
    """Yield what a race says, in sentences: the gain first, then how finalists compare."""
    if end is None:
        former = "; only an earlier version can judge it" if race.is_former else ""
        count = len(race.candidates)
        yield f"a race of {count} candidates, {len(race.runs)} trainings so far{former}"
        return
    winner, goal = end.winner, end.goal
    if winner is None:
        yield f"no candidate reached {goal} within {goal.limit_seconds:.3g} s of training"
        return
    entrants, verdict = entrants_of(race, end), verdict_of(race, end)
    if len(end.result.finalists) > 1:
        yield from gain_lines(verdict, entrants, Meter.TO_LOSS)
    elif winner == PLAIN_NUMBER:
        yield "use plain PyTorch: no other candidate reached the loss"
    else:
        yield "no other candidate reached the loss"
    yield f"the first at {goal}: {entrants[verdict.fastest]}"
    told = gain_pair(verdict, entrants)
    for place, candidate in enumerate(end.result.finalists):
        if candidate != winner and {place, verdict.fastest} != set(told):
            yield comparison_text(entrants[verdict.fastest], entrants[place], Meter.TO_LOSS)
        missed = sum(not final.arrived for final in end.finals_of(candidate))
        if missed:
            yield f"{entrants[place]} did not reach it in {missed} of {race.finals} trainings"
    if PLAIN_NUMBER not in end.result.finalists and len(end.result.finalists) > 1:
        yield "plain PyTorch did not reach it"


def entrants_of(race: TrainingRace, end: RaceEnd) -> list[Entrant]:
    """Return the finalists with what their trainings in the final cost."""
    found = []
    for number in end.result.finalists:
        one = race.candidates[number]
        told = one.configuration if one.placement is None else f"{one.configuration}, {one.method}"
        found.append(one.entrant(told, [final.cost for final in end.finals_of(number)]))
    return found


def verdict_of(race: TrainingRace, end: RaceEnd) -> Verdict:
    """Return the verdict of a race that has a winner; numbers are places among the finalists."""
    verdict = judge(entrants_of(race, end))
    assert verdict is not None
    return verdict


def is_plain_as_good(race: TrainingRace, end: RaceEnd) -> bool:
    """Return whether plain PyTorch has won, or is not shown to be worse than the winner."""
    if end.winner is None:
        return False
    return end.result.finalists[verdict_of(race, end).equals[0]] == PLAIN_NUMBER
