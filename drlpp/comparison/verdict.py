"""What a race says: who is faster and whether that is worth having, in plain English.

An agent's placement is worth having where it is faster than everything that a user has without the
agent: by 3% at least, and with 90% confidence. Otherwise there is *no difference worth having*, and
the simplest of the equals is named, by an order that :class:`Simplicity` defines once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from drlpp.comparison.race import DEFAULT_RULES, Lead, Standing
from drlpp.io.formatting import confidence_text

LEAST_GAIN = 0.03
LEAST_CONFIDENCE = 0.9


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
    """What took part in a race, which several may have come by.

    Attributes:
        found_by: names of who did, agents first.
        configuration: what it is.
        rival: whether a user has it without an agent.
        learned: whether an agent came by it.
        simplicity: of training that way.
        seconds: per minibatch, round by round; none if it failed.
    """

    found_by: tuple[str, ...]
    configuration: str
    rival: bool
    learned: bool
    simplicity: Simplicity
    seconds: tuple[float, ...]

    def __str__(self) -> str:
        return f"{' and '.join(self.found_by)} ({self.configuration})"


class Finding(Enum):
    """What a race says of an agent's placements and their rivals."""

    GAIN = auto()
    """An agent's placement is faster than all rivals, and it is worth having."""
    LOSS = auto()
    """A rival is faster than all that agents found."""
    EQUAL = auto()
    """There is no difference worth having."""
    SAME = auto()
    """The fastest was found by an agent and by a rival."""
    TOO_FEW_ROUNDS = auto()
    """Nobody can tell."""
    ALONE = auto()
    """Either no rival or nothing of an agent's could be measured."""


@dataclass(frozen=True)
class Verdict:
    """What a race says; numbers are those of the entrants.

    Attributes:
        finding: in a word.
        fastest: the winner of the race.
        lead: of the winner over the best of the other side, agents' or rivals'; None without one.
        equals: the fastest and all that it has no lead worth having over, the simplest first.
        placement: the simplest of the placements that are as good as the best placement; None if
            none could be measured.
    """

    finding: Finding
    fastest: int
    lead: Lead | None
    equals: tuple[int, ...]
    placement: int | None


def is_worth_having(lead: Lead) -> bool:
    """Return whether a lead is large enough, and sure enough."""
    return lead.probability >= LEAST_CONFIDENCE and lead.ratio >= 1 + LEAST_GAIN


def judge(entrants: Sequence[Entrant]) -> Verdict | None:
    """Return what a race says; None if nobody could be measured."""
    standing = Standing.of([entrant.seconds for entrant in entrants])
    fastest = standing.winner
    if fastest is None:
        return None
    equals = _equals(entrants, range(len(entrants)))
    placements = [i for i, entrant in enumerate(entrants) if entrant.simplicity.pipeline]
    placement = next(iter(_equals(entrants, placements)), None)

    def verdict(finding: Finding, lead: Lead | None = None) -> Verdict:
        return Verdict(finding, fastest, lead, equals, placement)

    winner = entrants[fastest]
    if winner.rival and winner.learned:
        return verdict(Finding.SAME)
    others = [i for i, e in enumerate(entrants) if (e.learned if winner.rival else e.rival)]
    best = _best(entrants, others)
    if best is None:
        return verdict(Finding.ALONE)
    if best in equals or not set(equals).intersection(others):
        shown = best
    else:
        # The best by median is beaten, but one whose times vary more may not be.
        shown = next(lead.rival for lead in standing.leads if lead.rival in others)
    (lead,) = (lead for lead in standing.leads if lead.rival == shown)
    if _few(entrants):
        return verdict(Finding.TOO_FEW_ROUNDS, lead)
    if set(equals).intersection(others):
        return verdict(Finding.EQUAL, lead)
    return verdict(Finding.LOSS if winner.rival else Finding.GAIN, lead)


def best_rival(entrants: Sequence[Entrant]) -> int | None:
    """Return the fastest of what a user has without an agent; None if none was measured."""
    return _best(entrants, [i for i, entrant in enumerate(entrants) if entrant.rival])


def _few(entrants: Sequence[Entrant]) -> bool:
    """Return whether too few rounds were run for differences to tell much of their spread."""
    return max(len(entrant.seconds) for entrant in entrants) < DEFAULT_RULES.least_rounds


def _best(entrants: Sequence[Entrant], among: Iterable[int]) -> int | None:
    chosen = set(among)
    return Standing.of([e.seconds if i in chosen else () for i, e in enumerate(entrants)]).winner


def _equals(entrants: Sequence[Entrant], among: Iterable[int]) -> tuple[int, ...]:
    """Return the fastest of some, and those that it has no lead worth having over.

    The simplest comes first.
    """
    chosen = set(among)
    standing = Standing.of([e.seconds if i in chosen else () for i, e in enumerate(entrants)])
    if standing.winner is None:
        return ()
    found = [standing.winner]
    if not _few(entrants):
        found += [lead.rival for lead in standing.leads if not is_worth_having(lead)]
    return tuple(sorted(found, key=lambda i: (entrants[i].simplicity, i != standing.winner, i)))


def verdict_lines(verdict: Verdict, entrants: Sequence[Entrant]) -> Iterator[str]:
    """Yield the verdict in sentences, the ratio over the best rival first."""
    winner, lead = entrants[verdict.fastest], verdict.lead
    other = "" if lead is None else str(entrants[lead.rival])
    of_agent = "the best that an agent found" if winner.rival else "the best rival"
    match verdict.finding:
        case Finding.GAIN:
            yield f"{_lead_text(lead)} over the best rival, {other}: {winner}"
        case Finding.LOSS:
            yield f"nothing gained: {winner} is {_lead_text(lead)} over {of_agent}, {other}"
        case Finding.EQUAL:
            yield (
                f"no difference worth having: {winner} is {_lead_text(lead)} over {of_agent}, "
                f"{other}"
            )
        case Finding.SAME:
            yield f"1.00× over the best rival: {winner}, the same placement, is the fastest"
        case Finding.TOO_FEW_ROUNDS:
            assert lead is not None
            yield f"{lead.ratio:.2f}× over {of_agent}, {other}, in too few rounds for a verdict"
        case Finding.ALONE:
            missing = "nothing that an agent found" if winner.rival else "no rival"
            yield f"{missing} could be measured; the fastest is {winner}"
    simplest = entrants[verdict.equals[0]]
    if len(verdict.equals) > 1:
        rest = ", ".join(str(entrants[index]) for index in verdict.equals[1:])
        yield f"the simplest of the equals is {simplest}; not shown to be slower: {rest}"
    if not simplest.simplicity.pipeline:
        yield "train with plain PyTorch: a pipeline is not worth having here"


def _lead_text(lead: Lead | None) -> str:
    assert lead is not None
    return (
        f"{lead.ratio:.2f}× ({lead.low:.2f}–{lead.high:.2f}, "
        f"{confidence_text(lead.probability)} confidence)"
    )
