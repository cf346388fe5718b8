"""Tables of the comparison: gaps to the best known, and paired tests."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy
from pandas import DataFrame

from benchmarks.expert_iteration.comparison import SECONDS, Arm, Run
from benchmarks.learning.comparisons import paired_difference

HEADROOM = 0.02
"""Problems on which nobody is this much faster than the planners are left out."""


def best_known(runs: Sequence[Run]) -> dict[int, float]:
    """Return the fewest seconds per minibatch that any run found, by problem with headroom."""
    best: dict[int, float] = {}
    planned: dict[int, float] = {}
    for one in runs:
        number = one.cell.problem
        best[number] = min(best.get(number, math.inf), one.planned, *one.found)
        planned[number] = one.planned
    return {n: found for n, found in best.items() if planned[n] > (1 + HEADROOM) * found}


def gaps(runs: Sequence[Run], arm: Arm, moment: int) -> dict[int, float]:
    """Return how far an arm is above the best known after a moment, mean over seeds, by problem."""
    best = best_known(runs)
    found: dict[int, list[float]] = {}
    for one in runs:
        if one.cell.arm is arm and one.cell.problem in best:
            gap = one.found[moment] / best[one.cell.problem] - 1
            found.setdefault(one.cell.problem, []).append(gap)
    return {number: float(numpy.mean(values)) for number, values in found.items()}


def table(runs: Sequence[Run]) -> DataFrame:
    """Return gaps in percent, and of each arm how it differs from the search alone."""
    rows = []
    for arm in Arm:
        if not any(one.cell.arm is arm for one in runs):
            continue
        row = {"proposals": str(arm)}
        for moment, seconds in enumerate(SECONDS):
            mine = gaps(runs, arm, moment)
            alone = gaps(runs, Arm.NOTHING, moment)
            both = sorted(mine.keys() & alone.keys())
            found = 100 * numpy.array([mine[number] for number in both])
            text = f"{numpy.median(found):.1f} / {found.max():.1f}" if len(found) else "–"
            if arm is not Arm.NOTHING:
                difference = paired_difference([mine[n] for n in both], [alone[n] for n in both])
                text += f" ({difference})"
            row[f"{seconds:g} s: median / worst"] = text
        rows.append(row)
    return DataFrame(rows)
