"""What a race says: which entrant is faster, by how much, and how certain that is.

Both races are judged alike, by costs that are paired by round: seconds per minibatch, which the
samples that late weights need may weigh, or seconds to a loss. A difference is significant if it is
3% at least and its 95% confidence interval excludes 1. Of entrants without a significant difference
the simplest is preferred (:attr:`~drlpp.racing.contenders.Contender.simplicity`). The first
sentence is what a user gains over what there is today, plain PyTorch and data parallelism, torch's
own as well.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from drlpp.racing.contenders import Contender
from drlpp.racing.race import LEAST_ROUNDS, Lead, lead_over, winner_of
from drlpp.racing.rivals import TODAY, is_rival
from drlpp.schedule.method import Method

_LEAST_GAIN = 0.03

_WEIGHED = (
    "to a loss: milliseconds × the samples that late or averaged weights need in a table "
    "(docs/results.md, small decoders), not trained here as by --data; updates of several "
    "minibatches are not judged"
)


@dataclass(frozen=True)
class Verdict:
    """What a race says, if anything could be measured; contenders are numbered from 0.

    Attributes:
        contenders: all that took part, by the names of all that found them.
        costs: of each, round by round, the less the better; none if it failed.
        usual: the method that was asked for, which descriptions leave out.
        done: what the better one does faster.
        fastest: the winner of the race.
    """

    contenders: Sequence[Contender]
    costs: Sequence[Sequence[float]]
    usual: Method
    done: str
    fastest: int

    def told(self, index: int) -> str:
        """Return who found a contender, and what it is."""
        one = self.contenders[index]
        return f"{one.found_by} ({one.beside(self.usual)})"

    @cached_property
    def equals(self) -> tuple[int, ...]:
        """All that are not shown to be slower than any other, the simplest first."""
        return self._equals(range(len(self.contenders)))

    @property
    def placement(self) -> int | None:
        """The simplest of the placements not shown to be slower than any other placement.

        None if none could be measured.
        """
        placed = [i for i, e in enumerate(self.contenders) if e.placement is not None]
        return next(iter(self._equals(placed)), None)

    @property
    def today(self) -> int | None:
        """The fastest of plain PyTorch and data parallelism; None if neither was measured."""
        return self._best(i for i, one in enumerate(self.contenders) if is_today(one))

    @property
    def best_rival(self) -> int | None:
        """The fastest of what a user has without an agent; None if none was measured."""
        return self._best(i for i, one in enumerate(self.contenders) if has_rival(one))

    @property
    def gain_pair(self) -> tuple[int, ...]:
        """What is to be used, or the best that is new, and the best that a user has today."""
        best: int | None = self.equals[0]
        if is_today(self.contenders[self.equals[0]]):
            best = self._best(i for i, one in enumerate(self.contenders) if not is_today(one))
        return () if best is None or self.today is None else (best, self.today)

    def gain_lines(self) -> Iterator[str]:
        """Yield what a user gains over plain PyTorch and data parallelism."""
        if self.gain_pair:
            yield self.comparison(*self.gain_pair)
        if self.is_torch_as_good:
            use = self.contenders[self.equals[0]].as_torch_has_it
            yield f"use {use}: no other candidate is significantly better here"

    @property
    def is_torch_as_good(self) -> bool:
        """Whether what torch does without us has won, or is not shown to be slower than others."""
        return self.contenders[self.equals[0]].placement is None

    def lines(self) -> Iterator[str]:
        """Yield what a race by time per minibatch says: the gain, then how candidates compare."""
        yield from self.gain_lines()
        winner, told = self.contenders[self.fastest], self.told(self.fastest)
        other = is_learned if has_rival(winner) else has_rival
        others = (i for i, one in enumerate(self.contenders) if i != self.fastest and other(one))
        best = self._best(others)
        if has_rival(winner) and is_learned(winner):
            yield f"the agent and a rival have found the same, which is the fastest: {told}"
        elif best is None:
            missing = "nothing that an agent found" if has_rival(winner) else "no rival"
            yield f"{missing} could be measured; the fastest is {told}"
        elif {self.fastest, best} != set(self.gain_pair):
            yield self.comparison(self.fastest, best)
        if len(self.equals) > 1:
            equals = "; ".join(map(self.told, self.equals))
            yield f"not shown to be slower than any other, the simplest first: {equals}"
        if any(one.samples != 1.0 for one in self.contenders):
            yield _WEIGHED

    def comparison(self, first: int, second: int) -> str:
        """Return which of two is better, by how much, and how certain that is."""
        lead = lead_over(self.costs[first], self.costs[second])
        if lead.ratio < 1:
            return self.comparison(second, first)
        told = f"{self.told(first)} {self.done} {lead.ratio:.2f}× faster than {self.told(second)}"
        if max(len(self.costs[first]), len(self.costs[second])) < LEAST_ROUNDS:
            return f"{told}, in too few rounds for a confidence interval"
        prefix = "" if _is_significant(lead) else "no significant difference: "
        return f"{prefix}{told} (95% CI {lead.low:.2f}–{lead.high:.2f})"

    def _best(self, among: Iterable[int]) -> int | None:
        return winner_among(self.costs, set(among))

    def _equals(self, among: Iterable[int]) -> tuple[int, ...]:
        """Return those that are not shown to be slower than any other, the simplest first."""
        costs = self.costs
        ran = [i for i in among if costs[i]]
        best = self._best(ran)
        if best is None:
            return ()
        found = {best}
        # Of fewer rounds, differences tell little of their spread.
        if max(map(len, costs)) >= LEAST_ROUNDS:
            found |= {i for i in ran if not any(_slower(costs[i], costs[j]) for j in ran)}
        return tuple(sorted(found, key=lambda i: (self.contenders[i].simplicity, i != best, i)))


def judge(
    contenders: Sequence[Contender],
    costs: Sequence[Sequence[float]],
    usual: Method,
    done: str = "trains a minibatch",
) -> Verdict | None:
    """Return what a race says; None if nothing could be measured."""
    fastest = winner_among(costs, range(len(costs)))
    return None if fastest is None else Verdict(contenders, costs, usual, done, fastest)


def winner_among(costs: Sequence[Sequence[float]], among: Container[int]) -> int | None:
    """Return the winner of some contenders; None if none of them could be measured."""
    return winner_of([found if i in among else () for i, found in enumerate(costs)])


def has_rival(one: Contender) -> bool:
    """Return whether a user has it without an agent."""
    return any(map(is_rival, one.names))


def is_learned(one: Contender) -> bool:
    """Return whether an agent found it."""
    return not all(map(is_rival, one.names))


def is_today(one: Contender) -> bool:
    """Return whether it is plain PyTorch or data parallelism."""
    return any(name in TODAY for name in one.names)


def _is_significant(lead: Lead) -> bool:
    """Return whether a difference is large enough, and certain enough."""
    return lead.low > 1 and lead.ratio >= 1 + _LEAST_GAIN


def _slower(own: Sequence[float], others: Sequence[float]) -> bool:
    """Return whether one is shown to be slower than another; whatever was dropped has been."""
    lead = lead_over(others, own)
    dropped = len(own) < len(others)
    return _is_significant(lead) or (dropped and lead.ratio >= 1 + _LEAST_GAIN)
