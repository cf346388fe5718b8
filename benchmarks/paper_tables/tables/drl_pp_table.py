"""DRL-PP's Table 1: the published profiles next to the paper's models, by bandwidth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from pandas import DataFrame

from benchmarks.drl_pp_table import AGENT, PAPER
from benchmarks.paper_tables.drl_pp import MODELS, Case, Placed
from benchmarks.paper_tables.tables.claims import NOT_YET
from benchmarks.report import markdown

_PAPERS = {
    "resnet50": "resnet50",
    "vgg16": "vgg16",
    "alexnet": "alexnet",
    "resnext50": "resnext50",
    "gnmt": "gnmt4",
}
"""The row of the paper for each profile."""

_AS_FAST = 1.005


def drl_pp_section(cases: Sequence[Case]) -> str:
    """Return both tables: every case, and the links on which the paper's ratios show."""
    ordered = [case for model in MODELS for case in sorted_cases(cases, model)]
    parts = [
        "### DRL-PP: Table 1\n",
        "Simulated, four accelerators with the costs that PipeDream's authors measured on GPUs, by "
        "the bandwidth of the links; times over those of the placement that the search finds:\n",
        markdown(DataFrame([_row(case) for case in ordered])) if ordered else NOT_YET,
        "\nThe links on which the paper's speed-up over data parallelism shows (between two "
        "bandwidths by a power law), and what the search takes on those that are the nearest:\n",
        markdown(DataFrame([_condition(cases, model) for model in MODELS])) if ordered else NOT_YET,
        "",
    ]
    return "\n".join(parts)


def sorted_cases(cases: Sequence[Case], model: str) -> list[Case]:
    """Return those of a model, the slowest links first."""
    found = [case for case in cases if case.model == model]
    return sorted(found, key=lambda case: case.gigabytes)


def _row(case: Case) -> dict[str, str]:
    def over(placed: Placed) -> str:
        return f"{placed.seconds / case.found.seconds:.2f}×"

    return {
        "model": MODELS[case.model],
        "GB/s": f"{case.gigabytes:g}",
        "PipeDream": case.pipedream.configuration,
        "search": case.found.configuration,
        "DP": over(case.data_parallel),
        "GPipe": over(case.gpipe),
        "PipeDream's time": over(case.pipedream),
    }


def _condition(cases: Sequence[Case], model: str) -> dict[str, str]:
    paper, own = PAPER[_PAPERS[model]], sorted_cases(cases, model)
    wanted = paper.seconds["data-parallel"] / paper.seconds[AGENT]
    if wanted == 1 and all(faster_than_data_parallel(case) < _AS_FAST for case in own):
        where, there = "all", own
    elif (found := bandwidth_of(own, wanted)) is None:
        where, there = "none", []
    else:
        where = f"{found:.2g} GB/s"
        there = [min(own, key=lambda case: abs(math.log(case.gigabytes / found)))]
    ratios = sorted({f"{c.pipedream.seconds / c.found.seconds:.2f}×" for c in there})
    return {
        "model (the paper's)": f"{MODELS[model]} ({paper.model})",
        "paper: over DP": f"{wanted:.2f}×",
        "paper: over PipeDream": paper.over("pipedream"),
        "paper: configuration": paper.configuration,
        "links": where,
        "configuration": " or ".join(dict.fromkeys(c.found.configuration for c in there)) or "–",
        "over PipeDream": " to ".join(dict.fromkeys((ratios or ["–"])[:: max(1, len(ratios) - 1)])),
    }


def faster_than_data_parallel(case: Case) -> float:
    """Return how many times as fast the search's placement is."""
    return case.data_parallel.seconds / case.found.seconds


def bandwidth_of(cases: Sequence[Case], wanted: float) -> float | None:
    """Return the links on which the search is ``wanted`` times as fast as data parallelism.

    Args:
        cases: of a model, the slowest links first.
        wanted: above 1.

    Returns:
        GB/s, the most where there are several; None where it is nowhere as fast.
    """
    for slow, fast in reversed(list(pairwise(cases))):
        above, below = faster_than_data_parallel(slow), faster_than_data_parallel(fast)
        if below <= wanted <= above and below < above:
            part = math.log(above / wanted) / math.log(above / below)
            return slow.gigabytes * (fast.gigabytes / slow.gigabytes) ** part
    return None
