"""What is believed of candidates after some measurements: their seconds in every draw of the costs.

A draw is a workload, a cluster and a discrepancy that are as probable as the measurements leave
them (:class:`~drlpp.planners.model_based.calibration.Calibration`). Candidates are compared within
a draw, so what all are off by together does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy

from drlpp.costs.stage_work import Array
from drlpp.placement.candidate import Candidate
from drlpp.planners.candidates import Limits, search
from drlpp.planners.model_based.side_by_side import side_by_side
from drlpp.planners.model_based.surrogate import Surrogate

CLOSE = 1.01
"""A candidate whose seconds are no more than this many times another's is as good."""

_THOROUGH = 4
"""In so many draws the search is a long one, which finds what short ones overlook."""

_BRIEF = 8
_LEAST = 60
"""In the others it may judge this part of the candidates, and so many at least: in a draw without a
search of its own nothing seems to be faster, and one is too sure."""


@dataclass(frozen=True)
class Belief:
    """The fastest measured candidate against all that might be faster.

    Attributes:
        candidates: that were not measured, none twice.
        ratios: their seconds over the incumbent's, ``(draws, candidates)``; without an incumbent,
            over those of the fastest in the draw.
        gain: the part of the incumbent's seconds that is expected to be saved by the best of these
            in a draw, if one knew which draw is true; 1 without an incumbent.
        sureness: the share of draws in which no candidate is more than 1% faster than it.
    """

    candidates: tuple[Candidate, ...]
    ratios: Array
    gain: float
    sureness: float

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
    ) -> Belief:
        """Look for the best candidates of every draw, and judge all of these in all draws.

        Args:
            draws: equally probable.
            pool: candidates that are known to be good, not measured; searches begin with them.
            incumbent: the fastest that was measured.
            limits: of the search in a draw, where it is a long one.
            seed: of these searches.
            takes_long: whether it is worth the while to search on several cores; what is found is
                the same.
        """
        starts = [*([incumbent] if incumbent else []), *pool]
        found = dict.fromkeys(pool)
        few = max(limits.judged // _BRIEF, _LEAST)
        brief = replace(limits, judged=few, patience=1, moves=few)
        searches = [
            (draw, starts, limits if number < _THOROUGH else brief, seed + number)
            for number, draw in enumerate(draws)
        ]
        for elites in side_by_side(_elites, searches, worth_it=takes_long):
            found |= dict.fromkeys(elites)
        candidates = tuple(candidate for candidate in found if candidate != incumbent)
        judgements = [(draw, incumbent, candidates) for draw in draws]
        rows = side_by_side(_ratios, judgements, worth_it=takes_long)
        ratios = numpy.array(rows).reshape(len(draws), len(candidates))
        best = ratios.min(axis=1, initial=math.inf)
        if incumbent is None:
            return cls(candidates, ratios, 1.0, 0.0)
        gain = float(numpy.maximum(0.0, 1.0 - best).mean())
        return cls(candidates, ratios, gain, float((best >= 1 / CLOSE).mean()))

    @property
    def promising(self) -> list[Candidate]:
        """The candidates that may be faster, by what is expected to be saved by each.

        Without an incumbent all may.
        """
        return [self.candidates[index] for index in self._order if self._worth[index] > 0]

    @property
    def others(self) -> list[Candidate]:
        """Those that no draw has faster, by their mean ratio; nothing that cannot be run."""
        mean = self.ratios.mean(axis=0)
        return [
            self.candidates[index]
            for index in numpy.argsort(mean, kind="stable")
            if self._worth[index] == 0 and math.isfinite(mean[index])
        ]

    @property
    def _worth(self) -> Array:
        """The part of the incumbent's seconds that each saves; the best of draws, without one."""
        if self.gain == 1.0:
            found: Array = 1.0 / self.ratios.mean(axis=0)
        else:
            found = numpy.maximum(0.0, 1.0 - self.ratios).mean(axis=0)
        return found

    @property
    def _order(self) -> list[int]:
        order: list[int] = numpy.argsort(-self._worth, kind="stable").tolist()
        return order


def _elites(
    draw: Surrogate, starts: Sequence[Candidate], limits: Limits, seed: int
) -> list[Candidate]:
    """Return what a search finds in a draw."""
    return [candidate for candidate, _ in search(draw.anew(), starts, limits, seed).elites]


def _ratios(draw: Surrogate, incumbent: Candidate | None, candidates: Sequence[Candidate]) -> Array:
    """Return the seconds of candidates in a draw over the incumbent's, or the fastest's."""
    judge = draw.anew()
    known = math.inf if incumbent is None else judge(incumbent)
    row = []
    for candidate in candidates:
        seconds = judge(candidate, known)
        row.append(seconds if judge.fits(candidate, seconds) else math.inf)
    if not math.isfinite(known):
        known = min(row, default=math.inf)
    return numpy.array(row) / known
