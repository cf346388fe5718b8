"""From a race's file to its end: the pace that plain PyTorch sets, the race, and what it says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from drlpp.comparison.race import Lead, Standing
from drlpp.comparison.verdict import LEAST_CONFIDENCE, LEAST_GAIN
from drlpp.errors import RunFailure
from drlpp.io.formatting import confidence_text
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
from drlpp.training_race.training_race_file import Racer, TrainingRace

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

    @property
    def standing(self) -> Standing:
        """Who is first in the final; numbers are those of ``result.finalists``.

        A training that was not there in the end counts as if it had been there then: that is in its
        favour.
        """
        return Standing.of([[f.cost for f in self.finals_of(c)] for c in self.result.finalists])

    def finals_of(self, candidate: int) -> list[Final]:
        """Return a finalist's trainings; that of the halving if there was nobody to race with."""
        return self.result.finals[candidate] or [Final(self.result.costs[candidate], True)]

    @property
    def winner(self) -> int | None:
        """The winner's number; None if nobody reached the goal."""
        place = self.standing.winner
        return None if place is None else self.result.finalists[place]

    def lead_over(self, candidate: int) -> Lead | None:
        """Return how much sooner the winner was than another finalist."""
        for lead in self.standing.leads:
            if self.result.finalists[lead.rival] == candidate:
                return lead
        return None


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
    """Yield what a race says, in sentences."""
    names = [_name(candidate) for candidate in race_.candidates]
    winner, goal = end.winner, end.goal
    what = (
        f"held-out loss {goal.loss:.4g}"
        if goal.loss is not None
        else f"the least held-out loss after {goal.seconds:.3g} s"
    )
    if winner is None:
        yield f"nobody reached {what} within {goal.limit_seconds:.3g} s of training"
        return
    if winner in race_.plain:
        own = race_.candidates[winner].optimizer_text
        yield f"plain PyTorch{own and f' with {own}'} was the first at {what}: train it plainly"
    else:
        yield f"{names[winner]} was the first at {what}"
    if len(end.result.finalists) < 2:
        yield "nobody else got there"
        return
    if race_.finals < 2:
        yield "by how much is not known from one training: give --finals 3 (finals)"
        return
    for candidate in end.result.finalists:
        lead = end.lead_over(candidate)
        if lead is not None:
            missed = sum(not final.arrived for final in end.finals_of(candidate))
            bound = f", which {missed} of {race_.finals} times was not there at the end"
            yield f"{_lead_text(lead, goal)} {names[candidate]}{bound if missed else ''}"
    if winner in race_.plain:
        return
    if race_.plain.isdisjoint(end.result.finalists):
        yield "plain PyTorch did not get there"
    elif is_plain_as_good(race_, end):
        yield "that is no difference worth having: train it plainly"


def _name(candidate: Racer) -> str:
    """Return a name that tells it from others with the same stages and microbatches."""
    name = f"{candidate.found_by} {candidate.configuration}"
    return name if candidate.placement is None else f"{name} ({candidate.method})"


def is_plain_as_good(race_: TrainingRace, end: RaceEnd) -> bool:
    """Return whether plain PyTorch has won, or the winner is not surely and noticeably better."""
    if end.winner in race_.plain:
        return True
    leads = [end.lead_over(plain) for plain in race_.plain]
    return any(lead is not None and not is_worth_having(lead) for lead in leads)


def is_worth_having(lead: Lead) -> bool:
    """Return whether a winner is surely and noticeably better than another."""
    return lead.ratio >= 1 + LEAST_GAIN and lead.probability >= LEAST_CONFIDENCE


def _lead_text(lead: Lead, goal: Goal) -> str:
    sure = f"{confidence_text(lead.probability)} confidence"
    if goal.loss is not None:
        return f"{lead.ratio:.2f}× as soon ({lead.low:.2f}–{lead.high:.2f}, {sure}) as"
    gains = [math.log(max(value, 1e-300)) for value in (lead.ratio, lead.low, lead.high)]
    return f"a loss lower by {gains[0]:.4f} ({gains[1]:.4f} to {gains[2]:.4f}, {sure}) than"
