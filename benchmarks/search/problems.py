"""The problems of the study, with costs as they are and as they are declared."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from random import Random

import numpy

from benchmarks import PROFILES
from benchmarks.made_up import generate
from benchmarks.search.graphs import NAMES, graph_of
from drlpp.costs.cost_table import read_profile
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.io.documents import Record
from drlpp.placement.candidate import Candidate
from drlpp.planners import PlanningProblem, Space, baseline_plans, data_parallel, starts_of
from drlpp.planners.search import Judge
from drlpp.schedule.analysis.staleness import usual_staleness
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Cluster, Link, local_cluster

_OPERATOR_ERROR = 0.25
_KIND_ERROR = 0.2
_LINK_ERROR = 0.5
"""Standard deviations of logarithms, where what is declared is wrong."""

MADE_UP = " (made up)"
_OPERATORS = 60

ZOO = tuple(sorted(path.stem for path in PROFILES.glob("*.json")))
GRAPHS = (*NAMES, *ZOO)
"""Graphs that are measured: branching ones, and profiles of the zoo."""

PLANNED = (
    *("vgg16", "resnet50", "gnmt8", "transformer"),
    *(family + MADE_UP for family in ("blocks", "encoder-decoder", "towers", "layered")),
)
"""Graphs that are only planned for."""

ACCELERATORS = (4, 8, 16)
BANDWIDTHS = (1.25e8, 1.25e9, 1.2e10)


class Case(Record):
    """A problem, and what is done with it.

    Attributes:
        graph: one of :data:`GRAPHS` or :data:`PLANNED`.
        accelerators: how many.
        bandwidth: of all links, in bytes per second.
        wrong: whether operators and links are declared wrongly; speeds, if they are unequal, then
            are not declared.
        unequal: whether half of the accelerators are slower.
        noise: standard deviation of the logarithm of what is measured.
        seed: of errors, noise and search.
        measurements: at most; without any the plan is the answer, whose depth is free.
        starts: of the search for the best known, the first from plans, the others from an
            even split.
        evaluations: of it from each.
    """

    graph: str
    accelerators: int
    bandwidth: float
    wrong: bool = False
    unequal: bool = False
    noise: float = 0.01
    seed: int = 0
    measurements: int = 16
    starts: int = 20
    evaluations: int = 1000


def planned_cases() -> list[Case]:
    """Return the problems that are only planned for: costs are right, accelerators equal."""
    return [
        Case(graph=graph, accelerators=count, bandwidth=bandwidth, measurements=0, starts=5)
        for graph in PLANNED
        for count in ACCELERATORS
        for bandwidth in BANDWIDTHS[:2]
    ]


def measured_cases(rounds: int) -> list[Case]:
    """Return the cases of ``rounds``, each of which has every combination of conditions once.

    In a round the combinations are dealt to the graphs in turn, in the next one each goes to the
    next graph; so as many rounds as graphs are all pairs, with one seed, and those after them have
    the next seed. Graphs are dealt to shuffled combinations, the same ones always, since a graph
    should not meet one number of accelerators only.
    """
    combinations = list(product(ACCELERATORS, BANDWIDTHS, (False, True), (False, True)))
    Random(16).shuffle(combinations)
    return [
        Case(
            graph=GRAPHS[(number + round_) % len(GRAPHS)],
            accelerators=count,
            bandwidth=bandwidth,
            wrong=wrong,
            unequal=unequal,
            seed=round_ // len(GRAPHS),
        )
        for round_ in range(rounds)
        for number, (count, bandwidth, wrong, unequal) in enumerate(combinations)
    ]


@dataclass(frozen=True)
class Instance:
    """The costs of a case, as they are and as they are declared."""

    case: Case

    @cached_property
    def true(self) -> PlanningProblem:
        """What is measured."""
        case = self.case
        speeds = [1.0 if a < case.accelerators / 2 else 0.6 for a in range(case.accelerators)]
        cluster = self._cluster(1.0, speeds if case.unequal else None)
        return PlanningProblem(Workload.of(self.profile, Method()), cluster, seed=case.seed)

    @cached_property
    def declared(self) -> PlanningProblem:
        """What the search is told."""
        case = self.case
        if not case.wrong:
            return self.true
        draw = numpy.random.default_rng([17, case.seed])
        cluster = self._cluster(float(draw.lognormal(0.0, _LINK_ERROR)), None)
        profile = _with_errors(self.profile, draw)
        return PlanningProblem(Workload.of(profile, Method()), cluster, seed=case.seed)

    @cached_property
    def profile(self) -> Profile:
        """The costs as they are."""
        name = self.case.graph
        if name.endswith(MADE_UP):
            return generate(name.removesuffix(MADE_UP), _OPERATORS, self.case.seed)
        return read_profile(PROFILES / f"{name}.json") if name in ZOO else graph_of(name)

    @cached_property
    def space(self) -> Space:
        """The in-flight depth varies; for measurements, without more than the usual staleness."""
        method = Method()
        if self.case.measurements == 0:
            return Space(method)
        return Space(method, None, usual_staleness(method, self.case.accelerators))

    @cached_property
    def declared_plans(self) -> list[Candidate]:
        """What planners propose by what is declared, and data parallelism."""
        return _plans(self.declared, self.space)

    @cached_property
    def true_plans(self) -> list[Candidate]:
        """The same by the costs as they are."""
        return _plans(self.true, self.space) if self.case.wrong else self.declared_plans

    @cached_property
    def judge(self) -> Judge:
        """Judges by the costs as they are."""
        return Judge(self.true, self.space)

    def _cluster(self, factor: float, speeds: list[float] | None) -> Cluster:
        link = Link(bandwidth_bytes_per_second=factor * self.case.bandwidth, latency_seconds=5e-5)
        return local_cluster(self.case.accelerators, link, speeds)


def _plans(problem: PlanningProblem, space: Space) -> list[Candidate]:
    everywhere = Candidate(data_parallel(problem).placement, space.method)
    return [everywhere, *starts_of(space, baseline_plans(problem, space))]


def _with_errors(profile: Profile, draw: numpy.random.Generator) -> Profile:
    kinds = {operator.type for operator in profile.graph.operators}
    of_kind = {kind: draw.lognormal(0.0, _KIND_ERROR) for kind in sorted(kinds)}
    factors = [
        float(of_kind[operator.type] * draw.lognormal(0.0, _OPERATOR_ERROR))
        for operator in profile.graph.operators
    ]
    operators = tuple(
        costs.model_copy(
            update={
                "forward_seconds": costs.forward_seconds * factor,
                "backward_seconds": costs.backward_seconds * factor,
            }
        )
        for costs, factor in zip(profile.operators, factors, strict=True)
    )
    return profile.model_copy(update={"operators": operators})
