"""DRL-PP's Table 1 for published profiles, simulated on links from slow to fast.

Costs are those of GPUs, measured by PipeDream's authors, so that what is computed and what is sent
have the ratio that they have there; only the bandwidth is not known of the paper's cluster. All
have PipeDream's weight stashing and no more minibatches in flight than NOAM, as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

from pandas import DataFrame

from benchmarks.papers.figures import AGENT, DRL_PP_TABLE_1
from benchmarks.papers.pipedream_profile import read_pipedream_profile
from benchmarks.study import Row, Study
from drlpp.costs.workload import Workload
from drlpp.io.documents import Record
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement
from drlpp.planners import Limits, PlanningProblem, Space, best_plan
from drlpp.planners.baselines import data_parallel, gpipe
from drlpp.planners.pipedream.pipedream import pipedream
from drlpp.planners.planning import Planner
from drlpp.planners.search import Judge
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Link, local_cluster

PROFILES = Path(__file__).parents[2] / "tests" / "data" / "pipedream-profiles"
MODELS = {
    "resnet50": "ResNet-50",
    "vgg16": "VGG-16",
    "alexnet": "AlexNet",
    "resnext50": "ResNeXt-50",
    "gnmt": "GNMT-8",
}
"""Titles by the files' names. The paper has ResNeXt-101 and GNMT-4, which nobody has published."""

GIGABYTES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Bandwidths, in GB/s: from 2 Gbit/s to PCI express."""

_ACCELERATORS = 4
_LATENCY_SECONDS = 2e-5
METHOD = Method(policy="stash")
_GPIPE = Method(schedule="gpipe", policy="sync", microbatches=4)
JUDGED = 3000


class Placed(Record):
    """A placement's configuration and its simulated seconds per minibatch."""

    configuration: str
    seconds: float


class Case(Record):
    """A model on links of a bandwidth, in GB/s, and how many candidates the search judges."""

    model: str
    gigabytes: float
    judged: int = JUDGED


class Simulated(Row):
    """Placements of a case.

    Attributes:
        data_parallel: on all accelerators.
        gpipe: four stages and four microbatches.
        pipedream: by the planner that PipeDream's authors released, as in the paper.
        found: by the search in the simulator, over placements.
    """

    case: Case
    data_parallel: Placed
    gpipe: Placed
    pipedream: Placed
    found: Placed


class DRLPPStudy(Study[Case, Simulated]):
    """DRL-PP's Table 1."""

    name = "drl-pp"
    question = "On which links are DRL-PP's placements and speed-ups those of its Table 1?"
    row = Simulated

    def cases(self, seeds: int | None, *, short: bool) -> list[Case]:
        """Return every model on every link; nothing of it is random."""
        if short:
            return [Case(model="alexnet", gigabytes=0.5, judged=60)]
        return [Case(model=model, gigabytes=each) for model in MODELS for each in GIGABYTES]

    def run(self, case: Case) -> Simulated:
        """Simulate a model on links of a bandwidth."""
        return simulated(case)

    def table(self, rows: Sequence[Simulated]) -> Mapping[str, DataFrame]:
        """Return every case, and the links on which the paper's ratios show."""
        ordered = [row for model in MODELS for row in sorted_rows(rows, model)]
        return {
            "Simulated, four accelerators with the costs that PipeDream's authors measured on "
            "GPUs, by the bandwidth of the links; times over those of the placement that the "
            "search finds": DataFrame([_row(row) for row in ordered]),
            "The links on which the paper's speed-up over data parallelism shows (between two "
            "bandwidths by a power law), and what the search takes on those that are the "
            "nearest": DataFrame([_condition(rows, model) for model in MODELS]),
        }


def simulated(case: Case) -> Simulated:
    """Plan a case in every way, and simulate what comes out."""
    profile = read_pipedream_profile(PROFILES / f"{case.model}.txt")
    link = Link(bandwidth_bytes_per_second=case.gigabytes * 1e9, latency_seconds=_LATENCY_SECONDS)
    cluster = local_cluster(_ACCELERATORS, link)

    def planned(planner: Planner, method: Method) -> Placed:
        problem = PlanningProblem(Workload.of(profile, method), cluster)
        placement = planner(problem).placement
        return placed(Judge(problem, Space(method, frozenset())), placement, method)

    problem = PlanningProblem(Workload.of(profile, METHOD), cluster)
    space = Space(METHOD, frozenset())
    found = best_plan(problem, space, limits=Limits(judged=case.judged)).placement
    return Simulated(
        case=case,
        data_parallel=planned(data_parallel, METHOD),
        gpipe=planned(gpipe, _GPIPE),
        pipedream=planned(partial(pipedream, cuts="graph"), METHOD),
        found=placed(Judge(problem, space), found, METHOD),
    )


def placed(judge: Judge, placement: Placement, method: Method) -> Placed:
    """Simulate a placement."""
    seconds = judge.exactly(Candidate(placement, method))
    return Placed(configuration=placement.configuration, seconds=seconds)


_PAPERS = {
    "resnet50": "resnet50",
    "vgg16": "vgg16",
    "alexnet": "alexnet",
    "resnext50": "resnext50",
    "gnmt": "gnmt4",
}
"""The row of the paper for each profile."""

_AS_FAST = 1.005


def sorted_rows(rows: Sequence[Simulated], model: str) -> list[Simulated]:
    """Return those of a model, the slowest links first."""
    found = [row for row in rows if row.case.model == model]
    return sorted(found, key=lambda row: row.case.gigabytes)


def _row(row: Simulated) -> dict[str, str]:
    def over(placed: Placed) -> str:
        return f"{placed.seconds / row.found.seconds:.2f}×"

    return {
        "model": MODELS[row.case.model],
        "GB/s": f"{row.case.gigabytes:g}",
        "PipeDream": row.pipedream.configuration,
        "search": row.found.configuration,
        "DP": over(row.data_parallel),
        "GPipe": over(row.gpipe),
        "PipeDream's time": over(row.pipedream),
    }


def _condition(rows: Sequence[Simulated], model: str) -> dict[str, str]:
    paper, own = DRL_PP_TABLE_1[_PAPERS[model]], sorted_rows(rows, model)
    wanted = paper.seconds["data-parallel"] / paper.seconds[AGENT]
    if wanted == 1 and all(faster_than_data_parallel(row) < _AS_FAST for row in own):
        where, there = "all", own
    elif (found := bandwidth_of(own, wanted)) is None:
        where, there = "none", []
    else:
        where = f"{found:.2g} GB/s"
        there = [min(own, key=lambda row: abs(math.log(row.case.gigabytes / found)))]
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


def faster_than_data_parallel(row: Simulated) -> float:
    """Return how many times as fast the search's placement is."""
    return row.data_parallel.seconds / row.found.seconds


def bandwidth_of(rows: Sequence[Simulated], wanted: float) -> float | None:
    """Return the links on which the search is ``wanted`` times as fast as data parallelism.

    Args:
        rows: of a model, the slowest links first.
        wanted: above 1.

    Returns:
        GB/s, the most where there are several; None where it is nowhere as fast.
    """
    for slow, fast in reversed(list(pairwise(rows))):
        above, below = faster_than_data_parallel(slow), faster_than_data_parallel(fast)
        if below <= wanted <= above and below < above:
            part = math.log(above / wanted) / math.log(above / below)
            return slow.case.gigabytes * (fast.case.gigabytes / slow.case.gigabytes) ** part
    return None


STUDY = DRLPPStudy()
