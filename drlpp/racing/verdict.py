"""What a race says: which entrant is faster, by how much, and how certain that is.

Both races are judged alike, by costs that are paired by round: seconds per minibatch, or seconds to
a loss. A difference is significant if it is 3% at least and its 95% confidence interval excludes 1.
Of entrants without a significant difference the simplest is preferred (:class:`Simplicity`). The
first sentence is what a user gains over what there is today, plain PyTorch and data parallelism.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from drlpp.racing.race import DEFAULT_RULES, Lead, lead_over, winner_of

LEAST_GAIN = 0.03
CONFIDENCE = 0.95


class Meter(StrEnum):
    """What a race measures: what the better one does, before the word "faster"."""

    MINIBATCH = "trains a minibatch"
    TO_LOSS = "reached the loss"


class Simplicity(NamedTuple):
    """How simple it is to train that way; the least is the simplest, the first field decides.

    Attributes:
        pipeline: whether it needs this project at all; plain PyTorch does not.
        stages: of the pipeline.
        stale: whether passes use weights that updates have changed meanwhile.
        workers: that hold a stage.
        microbatches: of a minibatch.
    """

    pipeline: bool
    stages: int = 1
    stale: bool = False
    workers: int = 1
    microbatches: int = 1


@dataclass(frozen=True)
class Entrant:
    """What took part in a race; equal candidates are one entrant.

    Attributes:
        found_by: the names of all that found it, agents first.
        configuration: what it is.
        rival: whether a user has it without an agent.
        learned: whether an agent found it.
        today: whether it is plain PyTorch or data parallelism.
        simplicity: of training that way.
        costs: round by round, the less the better; none if it failed.
    """

    found_by: tuple[str, ...]
    configuration: str
    rival: bool
    learned: bool
    today: bool
    simplicity: Simplicity
    costs: tuple[float, ...]

    def __str__(self) -> str:
        return f"{', '.join(self.found_by)} ({self.configuration})"


@dataclass(frozen=True)
class Verdict:
    """What a race says; numbers are those of the entrants.

    Attributes:
        fastest: the winner of the race.
        equals: all that are not shown to be slower than any other, the simplest first.
        placement: the simplest of the placements that are not shown to be slower than any other
            placement; None if none could be measured.
        today: the fastest of plain PyTorch and data parallelism; None if neither was measured.
    """

    fastest: int
    equals: tuple[int, ...]
    placement: int | None
    today: int | None


def is_significant(lead: Lead) -> bool:
    """Return whether a difference is large enough, and certain enough."""
    return lead.probability >= CONFIDENCE and lead.ratio >= 1 + LEAST_GAIN


def judge(entrants: Sequence[Entrant]) -> Verdict | None:
    """Return what a race says; None if nothing could be measured."""
    everyone = range(len(entrants))
    fastest = _best(entrants, everyone)
    if fastest is None:
        return None
    placements = [i for i in everyone if entrants[i].simplicity.pipeline]
    return Verdict(
        fastest,
        _equals(entrants, everyone),
        next(iter(_equals(entrants, placements)), None),
        _best(entrants, [i for i in everyone if entrants[i].today]),
    )


def best_rival(entrants: Sequence[Entrant]) -> int | None:
    """Return the fastest of what a user has without an agent; None if none was measured."""
    return _best(entrants, [i for i, entrant in enumerate(entrants) if entrant.rival])


def _few(entrants: Iterable[Entrant]) -> bool:
    """Return whether too few rounds were run for differences to tell much of their spread."""
    return max(len(entrant.costs) for entrant in entrants) < DEFAULT_RULES.least_rounds


def _best(entrants: Sequence[Entrant], among: Iterable[int]) -> int | None:
    chosen = set(among)
    return winner_of([e.costs if i in chosen else () for i, e in enumerate(entrants)])


def _equals(entrants: Sequence[Entrant], among: Iterable[int]) -> tuple[int, ...]:
    """Return those that are not shown to be slower than any other, the simplest first."""
    ran = [i for i in among if entrants[i].costs]
    best = _best(entrants, ran)
    if best is None:
        return ()
    found = {best}
    if not _few(entrants):
        found |= {i for i in ran if not any(_slower(entrants[i], entrants[j]) for j in ran)}
    return tuple(sorted(found, key=lambda i: (entrants[i].simplicity, i != best, i)))


def _slower(one: Entrant, other: Entrant) -> bool:
    """Return whether one is shown to be slower than another; whatever was dropped has been."""
    lead = lead_over(other.costs, one.costs)
    dropped = len(one.costs) < len(other.costs)
    return is_significant(lead) or (dropped and lead.ratio >= 1 + LEAST_GAIN)


def verdict_lines(verdict: Verdict, entrants: Sequence[Entrant]) -> Iterator[str]:
    """Yield what a race by time per minibatch says: the gain, then how candidates compare."""
    yield from gain_lines(verdict, entrants)
    winner = entrants[verdict.fastest]
    others = [i for i, e in enumerate(entrants) if (e.learned if winner.rival else e.rival)]
    best = _best(entrants, set(others) - {verdict.fastest})
    if winner.rival and winner.learned:
        yield f"the fastest, {winner}, was found by an agent and without one"
    elif best is None:
        missing = "nothing that an agent found" if winner.rival else "no rival"
        yield f"{missing} could be measured; the fastest is {winner}"
    elif {verdict.fastest, best} != set(gain_pair(verdict, entrants)):
        yield comparison_text(winner, entrants[best])
    if len(verdict.equals) > 1:
        equals = "; ".join(str(entrants[index]) for index in verdict.equals)
        yield f"not shown to be slower than any other, the simplest first: {equals}"


def gain_lines(
    verdict: Verdict, entrants: Sequence[Entrant], meter: Meter = Meter.MINIBATCH
) -> Iterator[str]:
    """Yield what a user gains over plain PyTorch and data parallelism."""
    pair = gain_pair(verdict, entrants)
    if pair:
        best, today = (entrants[index] for index in pair)
        yield comparison_text(best, today, meter)
    if not entrants[verdict.equals[0]].simplicity.pipeline:
        yield "use plain PyTorch: no other candidate is significantly better here"


def gain_pair(verdict: Verdict, entrants: Sequence[Entrant]) -> tuple[int, ...]:
    """Return what is to be used, or the best that is new, and the best that a user has today."""
    best: int | None = verdict.equals[0]
    if entrants[verdict.equals[0]].today:
        best = _best(entrants, [i for i, entrant in enumerate(entrants) if not entrant.today])
    return () if best is None or verdict.today is None else (best, verdict.today)


def comparison_text(one: Entrant, other: Entrant, meter: Meter = Meter.MINIBATCH) -> str:
    """Return which of two is better, by how much, and how certain that is."""
    lead = lead_over(one.costs, other.costs)
    if lead.ratio < 1:
        one, other, lead = other, one, lead_over(other.costs, one.costs)
    told = f"{one} {meter.value} {lead.ratio:.2f}× faster than {other}"
    if _few((one, other)):
        return f"{told}, in too few rounds for a confidence interval"
    interval = f"(95% CI {lead.low:.2f}–{lead.high:.2f})"
    prefix = "" if is_significant(lead) else "no significant difference: "
    return f"{prefix}{told} {interval}"
