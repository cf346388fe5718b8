"""From a race's file to its end: the pace that plain PyTorch sets, the race, and what it says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from drlpp.comparison.race import Standing
from drlpp.comparison.verdict import (
    LEAST_LOSS,
    TO_LOSS,
    Entrant,
    Meter,
    Verdict,
    comparison_text,
    gain_lines,
    judge,
)
from drlpp.errors import RunFailure
from drlpp.training_race.curves import Curve
from drlpp.training_race.halving import (
    Final,
    Goal,
    Race,
    Result,
    Rules,
    Train,
    Training,
    best_rate,
)
from drlpp.training_race.training_race_file import TrainingRace

_SEARCHED_EVALUATIONS = 3
"""A learning rate is tried until this many evaluations."""

_LIMIT = 5.0
"""Nobody trains longer than this many times what plain PyTorch takes to the loss it sets."""

_USUAL_LIMIT_SECONDS = 600.0


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
        """The winner's number; None if no candidate reached the goal."""
        costs = [[final.cost for final in self.finals_of(c)] for c in self.result.finalists]
        place = Standing.of(costs).winner
        return None if place is None else self.result.finalists[place]

    @property
    def is_contested(self) -> bool:
        """Whether the winner had anything to race with in the final."""
        return len(self.result.finalists) > 1

    @property
    def meter(self) -> Meter:
        """How one candidate is told to be better than another."""
        return TO_LOSS if self.goal.loss is not None else LEAST_LOSS


def run_race(
    race_: TrainingRace,
    train: Train,
    on_step: Callable[[str], None] = lambda step: None,
    forget: Callable[[Training], None] = lambda training: None,
) -> RaceEnd:
    """Run a race to its end: with the same curves it always ends the same way.

    Without a target, plain PyTorch, the first candidate, sets the loss to be reached.

    Raises:
        RunFailure: plain PyTorch fails, and has to set the loss.
    """
    wanted = min(_SEARCHED_EVALUATIONS * race_.every, race_.minibatches)
    rules = Rules(race_.rates, wanted, race_.finals, race_.halving, race_.scales)
    goal = _goal(race_, rules, train, on_step)
    count = len(race_.candidates)
    race = Race(count, train, goal, rules, race_.plain, on_step=on_step, forget=forget)
    return RaceEnd(goal, race.run())


def _goal(race_: TrainingRace, rules: Rules, train: Train, on_step: Callable[[str], None]) -> Goal:
    if race_.target_seconds is not None:
        return Goal(None, race_.target_seconds, race_.target_seconds)
    if race_.target_loss is not None:
        return Goal(race_.target_loss, None, race_.limit_seconds or _USUAL_LIMIT_SECONDS)
    on_step("learning rates: plain PyTorch")
    rate = best_rate(0, train, rules)
    if rate is None:
        failure = train(Training(0, rules.rates_of(0)[0]), lambda curve: True).failure
        raise RunFailure(
            f"plain PyTorch, which would set the loss to be reached, cannot train the model: "
            f"{failure}; give --target-loss or --seconds (target_loss, target_seconds)"
        )
    on_step(
        f"the loss that plain PyTorch reaches in {race_.epochs} epoch{'s' * (race_.epochs > 1)}"
    )
    wanted = race_.epochs * race_.minibatches
    curve = train(Training(0, rate), lambda curve: curve.minibatches >= wanted)
    loss = curve.loss_after(wanted)
    if not math.isfinite(loss):
        raise RunFailure(f"plain PyTorch, which sets the loss, failed: {curve.failure}")
    return Goal(loss, None, race_.limit_seconds or _LIMIT * curve.seconds_after(wanted))


def replay(race_: TrainingRace) -> RaceEnd | None:
    """Return how a race in a file ended; None if it has not ended yet."""
    curves = race_.curves

    def known(training: Training, enough: Callable[[Curve], bool]) -> Curve:
        curve = curves.get(training)
        if curve is None or not (curve.failure or enough(curve)):
            raise _NotTrainedYet
        return curve

    try:
        return run_race(race_, known)
    except _NotTrainedYet:
        return None


class _NotTrainedYet(Exception):
    pass


def verdict_lines(race_: TrainingRace, end: RaceEnd) -> Iterator[str]:
    """Yield what a race says, in sentences: the gain first, then how finalists compare."""
    winner, goal = end.winner, end.goal
    if winner is None:
        yield f"no candidate reached {goal} within {goal.limit_seconds:.3g} s of training"
        return
    entrants, verdict = entrants_of(race_, end), verdict_of(race_, end)
    if end.is_contested:
        yield from gain_lines(verdict, entrants, end.meter)
    yield f"the first at {goal}: {entrants[verdict.fastest]}"
    if not end.is_contested:
        yield "no other candidate reached it"
        if winner in race_.plain:
            yield "use plain PyTorch"
        return
    for place, candidate in enumerate(end.result.finalists):
        if candidate != winner:
            missed = sum(not final.arrived for final in end.finals_of(candidate))
            bound = f"; the latter did not reach it in {missed} of {race_.finals} trainings"
            told = comparison_text(entrants[verdict.fastest], entrants[place], end.meter)
            yield f"{told}{bound if missed else ''}"
    if race_.plain.isdisjoint(end.result.finalists):
        yield "plain PyTorch did not reach it"


def entrants_of(race_: TrainingRace, end: RaceEnd) -> list[Entrant]:
    """Return the finalists with what their trainings in the final cost."""
    return [
        race_.candidates[c].entrant(
            race_.candidates[c].told, [final.cost for final in end.finals_of(c)]
        )
        for c in end.result.finalists
    ]


def verdict_of(race_: TrainingRace, end: RaceEnd) -> Verdict:
    """Return the verdict of a race that has a winner; numbers are places among the finalists."""
    verdict = judge(entrants_of(race_, end))
    assert verdict is not None
    return verdict


def is_plain_as_good(race_: TrainingRace, end: RaceEnd) -> bool:
    """Return whether plain PyTorch has won, or is not shown to be worse than the winner."""
    if end.winner is None:
        return False
    simplest = end.result.finalists[verdict_of(race_, end).equals[0]]
    return simplest in race_.plain
