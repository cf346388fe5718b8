"""PipeDream's Table 1 on its clusters of 4 to 16 GPUs, simulated with its published profiles.

All have PipeDream's weight stashing and NOAM's minibatches in flight; data parallelism is one stage
on all GPUs, each with a minibatch of its own. The paper's GNMT-16, AWD LM and S2VT have no
published profile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from pandas import DataFrame

from benchmarks.papers.drl_pp import JUDGED, METHOD, PROFILES, Placed, placed
from benchmarks.papers.figures import PIPEDREAM_TABLE_1
from benchmarks.papers.pipedream_profile import read_pipedream_profile
from benchmarks.study import Needs, Row, Study
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput
from drlpp.io.documents import Record
from drlpp.planners import Limits, PlanningProblem, Space, best_plan
from drlpp.planners.baselines import data_parallel
from drlpp.planners.pipedream.pipedream import pipedream
from drlpp.planners.search import Judge
from drlpp.specs.cluster import Cluster, Host, Link, read_cluster

_FILES = {"VGG-16": "vgg16", "ResNet-50": "resnet50", "AlexNet": "alexnet", "GNMT-8": "gnmt"}
_A = read_cluster("v100-pipedream")
_LINKS = {
    "A": (_A.within_host, _A.between_hosts),
    "B": (
        Link(bandwidth_bytes_per_second=2.5e10, latency_seconds=1e-5),
        Link(bandwidth_bytes_per_second=3.125e9, latency_seconds=5e-5),
    ),
}
"""Within and between servers: V100s on PCIe and 10 Gbit/s, on NVLink and 25 Gbit/s."""


class Case(Record):
    """A row of the paper's table: the model, and its servers as ``4x4 (A)``."""

    model: str
    servers: str
    judged: int = JUDGED


class Simulated(Row):
    """Placements of a case: data parallelism, PipeDream's by its formula, and the search's."""

    case: Case
    data_parallel: Placed
    pipedream: Placed
    found: Placed


class Clusters(Study[Case, Simulated]):
    """PipeDream's Table 1, simulated."""

    name = "pipedream-clusters"
    question = "Do the configurations and epoch times of PipeDream's Table 1 come out on its GPUs?"
    row = Simulated
    needs = Needs(hours=0.2)

    def cases(self, seeds: int | None, *, short: bool) -> list[Case]:
        """Return the rows of the paper's table that have a profile; nothing is random."""
        if short:
            return [Case(model="GNMT-8", servers="1x4 (A)", judged=60)]
        return [
            Case(model=model, servers=servers)
            for model, servers, *_ in _papers()
            if model in _FILES
        ]

    def run(self, case: Case) -> Simulated:
        """Plan in every way, and simulate what comes out."""
        profile = read_pipedream_profile(PROFILES / f"{_FILES[case.model]}.txt")
        problem = PlanningProblem(Workload.of(profile, METHOD), _cluster(case.servers))
        space = Space(METHOD, frozenset())
        judge, plans = Judge(problem, space), []
        for flat in (False, True):
            with suppress(InvalidInput):
                plans.append(pipedream(problem, "graph", flat).placement)
        found = best_plan(problem, space, limits=Limits(judged=case.judged)).placement
        of_formula = [placed(judge, one, METHOD) for one in plans]
        return Simulated(
            case=case,
            data_parallel=placed(judge, data_parallel(problem).placement, METHOD),
            pipedream=min(of_formula, key=lambda one: one.seconds),
            found=placed(judge, found, METHOD),
        )

    def table(self, rows: Sequence[Simulated]) -> Mapping[str, DataFrame]:
        """Return speed-ups over data parallelism next to the paper's."""
        of_case = {(row.case.model, row.case.servers): row for row in rows}
        lines = [
            (of_case[model, servers], rest)
            for model, servers, *rest in _papers()
            if (model, servers) in of_case
        ]
        return {
            "PipeDream's Table 1 with its published profiles, simulated: configurations, and how "
            "many times as fast as data parallelism they are": DataFrame(
                {
                    "model": row.case.model,
                    "servers × GPUs": row.case.servers,
                    "paper": f"{configuration} {epoch_time}",
                    "PipeDream's formula": _said(row.pipedream, row),
                    "search": _said(row.found, row),
                }
                for row, (configuration, epoch_time, _) in lines
            )
        }


def _papers() -> list[tuple[str, ...]]:
    rows = PIPEDREAM_TABLE_1.itertuples(index=False)
    return [(data.partition(",")[0], *rest) for data, *rest in rows]


def _cluster(servers: str) -> Cluster:
    """Return one as ``4x4 (A)`` says."""
    counts, _, kind = servers.partition(" ")
    count, accelerators = map(int, counts.split("x"))
    within, between = _LINKS[kind.strip("()")]
    host = Host(name="server", count=count, accelerators=accelerators)
    return Cluster(hosts=(host,), within_host=within, between_hosts=between)


def _said(one: Placed, row: Simulated) -> str:
    return f"{one.configuration} {row.data_parallel.seconds / one.seconds:.2f}×"


STUDY = Clusters()
