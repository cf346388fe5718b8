"""DRL-PP's Table 1 for published profiles, simulated on links from slow to fast.

Costs are those of GPUs, measured by PipeDream's authors, so that what is computed and what is sent
have the ratio that they have there; only the bandwidth is not known of the paper's cluster. All
have PipeDream's weight stashing and no more minibatches in flight than NOAM, as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from drlpp.costs.files.pipedream_profile import read_pipedream_profile
from drlpp.costs.workload import Workload
from drlpp.io.documents import Record
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement
from drlpp.planners import PLANNERS, Limits, PlanningProblem, Space, best_searched
from drlpp.planners.candidates import Judge
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
_METHOD = Method(policy="stash")
_GPIPE = Method(schedule="gpipe", policy="sync", microbatches=4)
_JUDGED = 3000


class Placed(Record):
    """A placement's configuration and its simulated seconds per minibatch."""

    configuration: str
    seconds: float


class Case(Record):
    """A model on links of a bandwidth, in GB/s.

    Attributes:
        data_parallel: on all accelerators.
        gpipe: four stages and four microbatches.
        pipedream: by the planner that PipeDream's authors released, as in the paper.
        found: by the search in the simulator, over placements.
    """

    model: str
    gigabytes: float
    data_parallel: Placed
    gpipe: Placed
    pipedream: Placed
    found: Placed


def simulate_cases(known: Collection[tuple[str, float]], keep: Callable[[Case], None]) -> None:
    """Simulate what is not known yet."""
    for model in MODELS:
        for gigabytes in GIGABYTES:
            if (model, gigabytes) not in known:
                keep(simulate_case(model, gigabytes))


def simulate_case(model: str, gigabytes: float, judged: int = _JUDGED) -> Case:
    """Simulate a model on links of a bandwidth.

    Args:
        model: the name of its file.
        gigabytes: in GB/s.
        judged: of candidates, at most.
    """
    profile = read_pipedream_profile(PROFILES / f"{model}.txt")
    link = Link(bandwidth_bytes_per_second=gigabytes * 1e9, latency_seconds=_LATENCY_SECONDS)
    cluster = local_cluster(_ACCELERATORS, link)

    def planned(planner: str, method: Method) -> Placed:
        problem = PlanningProblem(Workload.of(profile, method), cluster)
        placement = PLANNERS[planner](problem).placement
        return _placed(Judge(problem, Space(method, frozenset())), placement, method)

    problem = PlanningProblem(Workload.of(profile, _METHOD), cluster)
    space = Space(_METHOD, frozenset())
    found = best_searched(problem, space, Limits(judged=judged)).found.candidate.placement
    return Case(
        model=model,
        gigabytes=gigabytes,
        data_parallel=planned("data-parallel", _METHOD),
        gpipe=planned("gpipe", _GPIPE),
        pipedream=planned("pipedream-code", _METHOD),
        found=_placed(Judge(problem, space), found, _METHOD),
    )


def _placed(judge: Judge, placement: Placement, method: Method) -> Placed:
    seconds = judge.exactly(Candidate(placement, method))
    return Placed(configuration=placement.configuration, seconds=seconds)
