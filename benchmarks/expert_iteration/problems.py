"""Models and clusters to learn from, and those that are held out."""

from __future__ import annotations

import math
from functools import lru_cache
from random import Random

from benchmarks.search.graphs import NAMES, graph_of
from drlpp.agents.pretraining.problems import FAMILIES, draw_problem
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.planners import PlanningProblem
from drlpp.specs.cluster import Link, local_cluster

_OPERATORS = (8, 120)
_ACCELERATORS = (4, 64)

HELD_OUT = 30
_HELD_OUT_ACCELERATORS = (8, 16, 32, 64)
_FASTEST_LINK, _SLOWEST_LINK = 1.25e10, 1.25e8


def training_problem(seed: int) -> PlanningProblem:
    """Draw a model of a family that is trained on, on 4 to 64 accelerators."""
    draw = Random(f"expert iteration {seed}")
    low, high = map(math.log, _ACCELERATORS)
    accelerators = round(math.exp(draw.uniform(low, high)))
    return draw_problem(draw.choice(FAMILIES), draw.randint(*_OPERATORS), accelerators, draw)


@lru_cache(maxsize=4)
def held_out_graph(number: int) -> tuple[str, Profile]:
    """Return a held-out model and its name."""
    name = NAMES[number % len(NAMES)]
    return name, graph_of(name)


def held_out_problem(number: int) -> PlanningProblem:
    """Return one of :data:`HELD_OUT` problems on graphs that nobody was trained on.

    They are those of ``benchmarks.search``, in turns, on 8, 16, 32 and 64 accelerators, with links
    of 125 MB/s to 12.5 GB/s; in every second the accelerators are of two speeds.
    """
    draw = Random(f"held out {number}")
    accelerators = _HELD_OUT_ACCELERATORS[number % len(_HELD_OUT_ACCELERATORS)]
    bandwidth = math.exp(draw.uniform(math.log(_SLOWEST_LINK), math.log(_FASTEST_LINK)))
    speeds = None
    if draw.random() < 0.5:
        speeds = [1.0 if a < accelerators / 2 else 0.6 for a in range(accelerators)]
    link = Link(bandwidth_bytes_per_second=bandwidth, latency_seconds=5e-5)
    workload = Workload.of(held_out_graph(number)[1])
    return PlanningProblem(workload, local_cluster(accelerators, link, speeds), seed=number)
