"""Which cells are run: rounds of all combinations of conditions, the graphs taking turns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from random import Random

from benchmarks.sixteen.runs import Cell


def cells_of(
    graphs: Sequence[str],
    accelerators: Sequence[int],
    bandwidths: Sequence[float],
    wrong: Sequence[bool],
    unequal: Sequence[bool],
    noise: float,
    rounds: int,
) -> list[Cell]:
    """Return the cells of ``rounds``, each of which has every combination of conditions once.

    In a round the combinations are dealt to the graphs in turn, in the next one each goes to the
    next graph; so as many rounds as graphs are all pairs, with one seed, and those after them have
    the next seed. Graphs are dealt to shuffled combinations, the same ones always, since a graph
    should not meet one number of accelerators only.
    """
    combinations = list(product(accelerators, bandwidths, wrong, unequal))
    Random(16).shuffle(combinations)
    return [
        Cell(
            graph=graphs[(number + round_) % len(graphs)],
            accelerators=count,
            bandwidth=bandwidth,
            wrong=is_wrong,
            unequal=is_unequal,
            noise=noise,
            seed=round_ // len(graphs),
        )
        for round_ in range(rounds)
        for number, (count, bandwidth, is_wrong, is_unequal) in enumerate(combinations)
    ]
