"""What a race says: which entrant is faster, by how much, and how certain that is.

Both races are judged alike, by costs that are paired by round: seconds per minibatch, or seconds to
a loss. A difference is significant if it is 3% at least and its 95% confidence interval excludes 1.
Of entrants without a significant difference the simplest is preferred
(:attr:`~drlpp.racing.contenders.Contender.simplicity`). The first sentence is what a user gains
over what there is today, plain PyTorch and data parallelism, torch's own as well.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from drlpp.racing.contenders import Contender
from drlpp.racing.race import LEAST_ROUNDS, Lead, lead_over, winner_of
from drlpp.racing.rivals import TODAY, is_rival

_LEAST_GAIN = 0.03


@dataclass(frozen=True)
class Entrant:
    """A contender in a race.

    Attributes:
        contender: by the names of all that found it.
        configuration: what it is, in a sentence.
        costs: round by round, the less the better; none if it failed.
    """

    contender: Contender
    configuration: str
    costs: Sequence[float]

    @property
    def rival(self) -> bool:
        """Whether a user has it without an agent."""
        return any(map(is_rival, self.contender.names))

    @property
    def learned(self) -> bool:
        """Whether an agent found it."""
        return not all(map(is_rival, self.contender.names))

    @property
    def today(self) -> bool:
        """Whether it is plain PyTorch or data parallelism."""
        return any(name in TODAY for name in self.contender.names)

    def __str__(self) -> str:
        return f"{self.contender.found_by} ({self.configuration})"


@dataclass(frozen=True)
class Verdict:
    """What a race says, if anything could be measured; entrants are numbered from 0.

    Attributes:
        entrants: all that took part.
        fastest: the winner of the race.
        done: what the better one does faster.
    """

    entrants: Sequence[Entrant]
    fastest: int
    done: str

    @cached_property
    def equals(self) -> tuple[int, ...]:
        """All that are not shown to be slower than any other, the simplest first."""
        return self._equals(range(len(self.entrants)))

    @property
    def placement(self) -> int | None:
        """The simplest of the placements not shown to be slower than any other placement.

        None if none could be measured.
        """
        placed = [i for i, e in enumerate(self.entrants) if e.contender.placement is not None]
        return next(iter(self._equals(placed)), None)

    @property
    def today(self) -> int | None:
        """The fastest of plain PyTorch and data parallelism; None if neither was measured."""
        return self._best(i for i, entrant in enumerate(self.entrants) if entrant.today)

    @property
    def best_rival(self) -> int | None:
        """The fastest of what a user has without an agent; None if none was measured."""
        return self._best(i for i, entrant in enumerate(self.entrants) if entrant.rival)

    @property
    def gain_pair(self) -> tuple[int, ...]:
        """What is to be used, or the best that is new, and the best that a user has today."""
        best: int | None = self.equals[0]
        if self.entrants[self.equals[0]].today:
            best = self._best(i for i, entrant in enumerate(self.entrants) if not entrant.today)
        return () if best is None or self.today is None else (best, self.today)

    def gain_lines(self) -> Iterator[str]:
        """Yield what a user gains over plain PyTorch and data parallelism."""
        if self.gain_pair:
            yield self.comparison(*self.gain_pair)
        if self.is_torch_as_good:
            use = self.entrants[self.equals[0]].contender.as_torch_has_it
            yield f"use {use}: no other candidate is significantly better here"

    @property
    def is_torch_as_good(self) -> bool:
        """Whether what torch does without us has won, or is not shown to be slower than others."""
        return self.entrants[self.equals[0]].contender.placement is None

    def lines(self) -> Iterator[str]:
        """Yield what a race by time per minibatch says: the gain, then how candidates compare."""
        yield from self.gain_lines()
        winner = self.entrants[self.fastest]
        best = self._best(
            i
            for i, entrant in enumerate(self.entrants)
            if i != self.fastest and (entrant.learned if winner.rival else entrant.rival)
        )
        if winner.rival and winner.learned:
            yield f"the fastest, {winner}, was found by an agent and without one"
        elif best is None:
            missing = "nothing that an agent found" if winner.rival else "no rival"
            yield f"{missing} could be measured; the fastest is {winner}"
        elif {self.fastest, best} != set(self.gain_pair):
            yield self.comparison(self.fastest, best)
        if len(self.equals) > 1:
            equals = "; ".join(str(self.entrants[index]) for index in self.equals)
            yield f"not shown to be slower than any other, the simplest first: {equals}"

    def comparison(self, first: int, second: int) -> str:
        """Return which of two is better, by how much, and how certain that is."""
        one, other = self.entrants[first], self.entrants[second]
        lead = lead_over(one.costs, other.costs)
        if lead.ratio < 1:
            one, other, lead = other, one, lead_over(other.costs, one.costs)
        told = f"{one} {self.done} {lead.ratio:.2f}× faster than {other}"
        if max(len(one.costs), len(other.costs)) < LEAST_ROUNDS:
            return f"{told}, in too few rounds for a confidence interval"
        prefix = "" if _is_significant(lead) else "no significant difference: "
        return f"{prefix}{told} (95% CI {lead.low:.2f}–{lead.high:.2f})"

    def _best(self, among: Iterable[int]) -> int | None:
        return _winner(self.entrants, set(among))

    def _equals(self, among: Iterable[int]) -> tuple[int, ...]:
        """Return those that are not shown to be slower than any other, the simplest first."""
        entrants = self.entrants
        ran = [i for i in among if entrants[i].costs]
        best = self._best(ran)
        if best is None:
            return ()
        found = {best}
        # Of fewer rounds, differences tell little of their spread.
        if max(len(entrant.costs) for entrant in entrants) >= LEAST_ROUNDS:
            found |= {i for i in ran if not any(_slower(entrants[i], entrants[j]) for j in ran)}
        return tuple(sorted(found, key=lambda i: (entrants[i].contender.simplicity, i != best, i)))


def judge(entrants: Sequence[Entrant], done: str = "trains a minibatch") -> Verdict | None:
    """Return what a race says; None if nothing could be measured."""
    fastest = _winner(entrants, range(len(entrants)))
    return None if fastest is None else Verdict(entrants, fastest, done)


def _winner(entrants: Sequence[Entrant], among: Container[int]) -> int | None:
    return winner_of([one.costs if i in among else () for i, one in enumerate(entrants)])


def _is_significant(lead: Lead) -> bool:
    """Return whether a difference is large enough, and certain enough."""
    return lead.low > 1 and lead.ratio >= 1 + _LEAST_GAIN


def _slower(one: Entrant, other: Entrant) -> bool:
    """Return whether one is shown to be slower than another; whatever was dropped has been."""
    lead = lead_over(other.costs, one.costs)
    dropped = len(one.costs) < len(other.costs)
    return _is_significant(lead) or (dropped and lead.ratio >= 1 + _LEAST_GAIN)
