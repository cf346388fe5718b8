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
from drlpp.training_race.halving import Goal, Result, Rules, Train, Training, best_rate, race
from drlpp.training_race.training_race_file import TrainingRace

_SEARCHED_EVALUATIONS = 2
"""A learning rate is tried for as long as plain PyTorch takes to this many evaluations."""

_LIMIT = 5.0
"""Nobody trains longer than this many times what plain PyTorch takes to the loss it sets."""

_USUAL_LIMIT_SECONDS = 600.0


@dataclass(frozen=True)
class RaceEnd:
    """How a race ended.

    Attributes:
        goal: what won; a loss that plain PyTorch has set included.
        rules: how it was run.
        result: the race's.
    """

    goal: Goal
    rules: Rules
    result: Result

    @property
    def standing(self) -> Standing:
        """Who is first in the final; numbers are those of ``result.finalists``."""
        return Standing.of([self.result.costs[c] for c in self.result.finalists])

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

    Plain PyTorch, the first candidate, sets the pace: how long a learning rate is tried and,
    without a target, the loss to be reached.

    Raises:
        RunFailure: plain PyTorch fails.
    """
    on_step("how fast plain PyTorch trains")
    middle = race_.rates[len(race_.rates) // 2]
    wanted = _SEARCHED_EVALUATIONS * race_.every
    paced = train(Training(0, middle), lambda curve: curve.last.minibatches >= wanted)
    if paced.seconds == 0:
        raise RunFailure(f"plain PyTorch cannot train the model: {paced.failure}")
    rules = Rules(race_.rates, paced.seconds_after(wanted), race_.finals)
    goal = _goal(race_, rules, train, on_step)
    result = race(
        len(race_.candidates), train, goal, rules, reference=0, on_step=on_step, forget=forget
    )
    return RaceEnd(goal, rules, result)


def _goal(race_: TrainingRace, rules: Rules, train: Train, on_step: Callable[[str], None]) -> Goal:
    if race_.target_seconds is not None:
        return Goal(None, race_.target_seconds, race_.target_seconds)
    if race_.target_loss is not None:
        return Goal(race_.target_loss, None, race_.limit_seconds or _USUAL_LIMIT_SECONDS)
    rate = best_rate(0, train, rules)
    if rate is None:
        raise RunFailure("plain PyTorch fails with every learning rate; give a smaller one")
    on_step(f"the loss that plain PyTorch reaches in {race_.epochs} epochs")
    wanted = race_.epochs * race_.minibatches
    curve = train(Training(0, rate), lambda curve: curve.last.minibatches >= wanted)
    within = [point for point in curve.points[1:] if point.minibatches <= wanted]
    loss = min(point.comparable_loss for point in within)
    limit = race_.limit_seconds or _LIMIT * curve.seconds_after(wanted)
    return Goal(loss, None, limit)


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
    names = [f"{c.found_by} {c.configuration}" for c in race_.candidates]
    plain, winner, goal = 0, end.winner, end.goal
    what = (
        f"held-out loss {goal.loss:.4g}"
        if goal.loss is not None
        else f"the least held-out loss after {goal.seconds:.3g} s"
    )
    if winner is None:
        yield f"nobody reached {what} within {goal.limit_seconds:.3g} s of training"
        return
    if winner == plain:
        yield f"plain PyTorch was the first at {what}: train it plainly"
    else:
        yield f"{names[winner]} ({race_.candidates[winner].method}) was the first at {what}"
    for candidate in end.result.finalists:
        lead = end.lead_over(candidate)
        if lead is not None:
            yield f"{_lead_text(lead, goal)} {names[candidate]}"
    lead = end.lead_over(plain)
    if winner != plain and lead is None:
        yield "plain PyTorch did not get there"
    elif lead is not None and not is_worth_having(lead):
        yield "that is no difference worth having: train it plainly"
    costs = end.result.costs.values()
    if len(costs) > 1 and any(len(of_one) < race_.finals for of_one in costs):
        yield "not every training of the final got there, so that less is known than was asked for"


def is_worth_having(lead: Lead) -> bool:
    """Return whether a winner is surely and noticeably better than another."""
    return lead.ratio >= 1 + LEAST_GAIN and lead.probability >= LEAST_CONFIDENCE


def _lead_text(lead: Lead, goal: Goal) -> str:
    sure = f"{confidence_text(lead.probability)} confidence"
    if goal.loss is not None:
        return f"{lead.ratio:.2f}× as soon ({lead.low:.2f}–{lead.high:.2f}, {sure}) as"
    gains = [math.log(max(value, 1e-300)) for value in (lead.ratio, lead.low, lead.high)]
    return f"a loss lower by {gains[0]:.4f} ({gains[1]:.4f} to {gains[2]:.4f}, {sure}) than"
