"""What is believed of candidates after some measurements: their seconds in every draw of the costs.

A draw is a workload, a cluster and a discrepancy that are as probable as the measurements leave
them (:class:`~drlpp.planners.calibration.calibration.Calibration`). Candidates are compared within
a draw, so what all are off by together does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy

from drlpp.costs.stage_cost import Array
from drlpp.errors import NothingFits
from drlpp.placement.candidate import Candidate
from drlpp.planners.calibration.surrogate import Surrogate
from drlpp.planners.search import Limits, search
from drlpp.planners.side_by_side import side_by_side

CLOSE = 1.01
"""A candidate whose seconds are no more than this many times another's is as good."""

_BRIEF = 8
_LEAST = 60
"""A search in a draw may judge this part of the candidates, and so many at least: in a draw without
a search of its own nothing seems to be faster, and one is too sure."""

_THOROUGH = 4
"""In so many draws there is a long search as well, which finds what brief ones overlook."""

_PLENTY = 0.03
"""Where brief searches have shown that so much is to gain, the next measurement tells more than
long ones."""


@dataclass(frozen=True)
class Belief:
    """The fastest measured candidate against all that might be faster.

    Attributes:
        candidates: that were not measured, none twice.
        ratios: their seconds over the incumbent's, ``(draws, candidates)``; without an incumbent,
            over those of the fastest in the draw.
        gain: the part of the incumbent's seconds that is expected to be saved by the best of these
            in a draw, if one knew which draw is true; 1 without an incumbent.
        confidence: how probable it is that no candidate is more than 1% faster than it:
            (s + 1) / (n + 2) where that is so in s of n draws, since a few that all agree leave a
            doubt (Laplace's rule of succession).
        guest: that of the caller, if no search came by it.
    """

    candidates: tuple[Candidate, ...]
    ratios: Array
    gain: float
    confidence: float
    guest: Candidate | None = None

    @classmethod
    def of(
        cls,
        draws: Sequence[Surrogate],
        pool: Sequence[Candidate],
        incumbent: Candidate | None,
        limits: Limits,
        seed: int,
        *,
        takes_long: bool = False,
        guest: Candidate | None = None,
    ) -> Belief:
        """Look for the best candidates of every draw, and judge all of these in all draws.

        Brief searches look first. Where little seems to be left to gain, long ones have a say.

        Args:
            draws: equally probable.
            pool: candidates that are known to be good, not measured; searches begin with them.
            incumbent: the fastest that was measured.
            limits: of a long search.
            seed: of these searches.
            takes_long: whether it is worth the while to search on several cores; what is found is
                the same.
            guest: a candidate that no search begins with.
        """
        few = max(limits.judged // _BRIEF, _LEAST)
        brief = replace(limits, judged=few, patience=1, moves=few)
        starts = [*([incumbent] if incumbent else []), *pool]
        known: list[dict[Candidate, float]] = [{} for _ in draws]
        found = dict.fromkeys(pool)

        def searched(count: int, limits: Limits) -> None:
            tasks = [(draw, starts, limits, seed + n) for n, draw in enumerate(draws[:count])]
            for number, (elites, seconds) in enumerate(
                side_by_side(_searched, tasks, worth_it=takes_long)
            ):
                found.update(dict.fromkeys(elites))
                known[number] |= seconds

        def judged() -> Belief:
            key = draws[0].key
            own = None if guest is None or key(guest) in map(key, found) else guest
            candidates = tuple(c for c in (*found, own) if c is not None and c != incumbent)
            tasks = [(draw, incumbent, candidates, known[n]) for n, draw in enumerate(draws)]
            rows = []
            for number, seconds in enumerate(side_by_side(_judged, tasks, worth_it=takes_long)):
                known[number] |= seconds
                row = [seconds[candidate] for candidate in candidates]
                least = seconds[incumbent] if incumbent else math.inf
                if math.isinf(least):
                    least = min(row, default=math.inf)
                rows.append(numpy.array(row) / least)
            ratios = numpy.array(rows).reshape(len(draws), len(candidates))
            best = ratios.min(axis=1, initial=math.inf)
            if incumbent is None:
                return cls(candidates, ratios, 1.0, 0.0, own)
            gain = float(numpy.maximum(0.0, 1.0 - best).mean())
            agreeing = int((best >= 1 / CLOSE).sum())
            return cls(candidates, ratios, gain, (agreeing + 1) / (len(draws) + 2), own)

        searched(len(draws), brief)
        if (belief := judged()).gain >= _PLENTY:
            return belief
        searched(_THOROUGH, limits)
        return judged()

    @property
    def promising(self) -> list[Candidate]:
        """Candidates that may be faster, those that save most first; all without an incumbent."""
        worth = self._worth
        order = numpy.argsort(-worth, kind="stable")
        return [self.candidates[index] for index in order if worth[index] > 0]

    @property
    def others(self) -> list[Candidate]:
        """Those that no draw has faster, by their mean ratio; nothing that cannot be run."""
        mean = self.ratios.mean(axis=0)
        others = (self._worth == 0) & numpy.isfinite(mean)
        return [self.candidates[i] for i in numpy.argsort(mean, kind="stable") if others[i]]

    @property
    def _worth(self) -> Array:
        """The part of the incumbent's seconds that each saves; the best of draws, without one."""
        if self.gain == 1.0:
            found: Array = 1.0 / self.ratios.mean(axis=0)
        else:
            found = numpy.maximum(0.0, 1.0 - self.ratios).mean(axis=0)
        return found


def _searched(
    draw: Surrogate, starts: Sequence[Candidate], limits: Limits, seed: int
) -> tuple[list[Candidate], dict[Candidate, float]]:
    """Return what a search finds in a draw, and what is known then of that and the starts."""
    judge = draw.anew()
    elites: list[Candidate] = []
    with suppress(NothingFits):
        elites += [plan.candidate for plan in search(judge, starts, limits, seed)]
    seconds = {candidate: judge.known(candidate) for candidate in (*starts, *elites)}
    return elites, {candidate: one for candidate, one in seconds.items() if one is not None}


def _judged(
    draw: Surrogate,
    incumbent: Candidate | None,
    candidates: Sequence[Candidate],
    known: dict[Candidate, float],
) -> dict[Candidate, float]:
    """Return the seconds of candidates in a draw, and the incumbent's.

    Infinite is what cannot be run; what is slower than the incumbent need not be known exactly.
    Some are known.
    """
    judge = draw.anew()

    def seconds_of(candidate: Candidate, limit: float = math.inf) -> float:
        if candidate in known:
            return known[candidate]
        seconds = judge(candidate, limit)
        return seconds if judge.fits(candidate, seconds) else math.inf

    if incumbent is None:
        return {candidate: seconds_of(candidate) for candidate in candidates}
    least = seconds_of(incumbent)
    others = {candidate: seconds_of(candidate, least) for candidate in candidates}
    return {incumbent: least, **others}
