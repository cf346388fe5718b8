"""A placement for another number of accelerators than it was made for: fewer, more, or others."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from drlpp.capturing.graph import OpGraph
from drlpp.costs.profile import Profile
from drlpp.costs.profiles.estimated_profile import estimate_profile
from drlpp.errors import InvalidInput, InvalidPlacement
from drlpp.io.documents import read_document
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import Measurement, Outcome, median_measurement
from drlpp.placement.measurements_file import read_measurements
from drlpp.placement.placement_file import PlacementFile
from drlpp.planners.baselines import gpipe
from drlpp.planners.calibration.calibration import Calibration
from drlpp.planners.planning import best_plan
from drlpp.planners.problem import PlanningProblem
from drlpp.planners.search import Limits, Space
from drlpp.specs.cluster import MOST_ACCELERATORS, Cluster

EVEN, PLANNED = "even cut", "planned with its profile"

Measured = tuple[Candidate, Measurement]

_SHORT = Limits(judged=2_000, patience=4)
"""Of a search for which a training may be waiting."""


@dataclass(frozen=True)
class Replanner:
    """Plans for those accelerators that there are.

    With a profile it is the best that a short search finds from the baselines' plans
    (:func:`~drlpp.planners.planning.best_plan`). Without one, the operators are cut
    into as many stages as there are accelerators, evenly by sizes. What an agent has measured
    corrects the costs and the cluster, and what it measured on none but those that there are is
    taken where nothing else is faster. What the method says of each stage that there was becomes
    one value for all (:attr:`drlpp.schedule.method.Method.for_any_stages`).

    Attributes:
        document: the placement to be replaced; its cluster describes the accelerators. Those beyond
            it are taken to be like its last, on hosts like its last; or on that host, where no link
            between hosts is known.
        graph: of the model.
        profile: what the operators cost, None if nobody has measured it.
        measured: candidates that ran on the document's cluster.
    """

    document: PlacementFile
    graph: OpGraph
    profile: Profile | None = None
    measured: Sequence[Measured] = field(default=(), repr=False)

    def cluster(self, accelerators: Collection[int]) -> Cluster:
        """Return the cluster of these accelerators, numbered anew in their order."""
        return _part(self.document.cluster, accelerators)

    def plan(self, accelerators: Collection[int], most: int) -> ExecutionPlan:
        """Return the plan for some of accelerators 0 … ``most`` − 1.

        The file's placement is kept where it needs none but these, and these are all among those
        that its cluster has.

        Raises:
            NothingFits: no placement for these fits into memory.
            InvalidInput: the method cannot run on these.
        """
        numbers = sorted(accelerators)
        candidate = Candidate(self.document.resolve(self.graph), self.document.method)
        is_known = numbers[-1] < self.document.cluster.accelerators
        if not (is_known and set(candidate.placement.accelerators) <= set(numbers)):
            candidate = self._new_candidate(numbers)
        return ExecutionPlan.of(candidate, self.graph, most)

    def file(self, accelerators: int) -> PlacementFile:
        """Return the placement file for the first so many accelerators.

        Raises:
            InvalidInput: see :meth:`plan`.
        """
        if not 1 <= accelerators <= MOST_ACCELERATORS:
            raise InvalidPlacement(
                f"{accelerators} workers were asked for; 1 to {MOST_ACCELERATORS} are possible"
            )
        cluster = self.cluster(range(accelerators))
        candidate = self._new_candidate(range(accelerators))
        return PlacementFile.create(
            self.document.model,
            self.graph,
            candidate.placement,
            cluster,
            method=candidate.method,
            optimizer=self.document.optimizer,
            found_by=self.how,
        )

    @property
    def how(self) -> str:
        """How placements are found, in a word or two."""
        return EVEN if self.profile is None else PLANNED

    @cached_property
    def _problem(self) -> PlanningProblem:
        """The problem of the whole cluster, corrected by what was measured."""
        document, profile = self.document, self.profile or estimate_profile(self.graph)
        problem = PlanningProblem.profiled(
            profile, document.cluster, document.method.for_any_stages, document.optimizer
        )
        if self.profile is None or not self.measured:
            return problem
        calibration = Calibration(problem.workload, problem.cluster)
        for candidate, measurement in self.measured:
            calibration.observe(candidate, measurement)
        fitted = calibration.fit()
        return replace(problem, workload=fitted.workload, cluster=fitted.cluster)

    def _new_candidate(self, numbers: Sequence[int]) -> Candidate:
        """Return the fastest for these accelerators that was measured, or can be planned."""
        problem = replace(self._problem, cluster=_part(self._problem.cluster, numbers))
        method = self.document.method.for_any_stages
        if self.profile is None:
            planned, seconds = gpipe(problem).placement, None
        else:
            best = best_plan(problem, Space(method, frozenset()), limits=_SHORT)
            planned, seconds = best.placement, best.seconds_per_minibatch
        known = [
            (measurement.seconds_per_minibatch, number)
            for number, (candidate, measurement) in enumerate(self.measured)
            if candidate.method == self.document.method
            and set(candidate.placement.accelerators) <= set(numbers)
        ]
        if known and (seconds is None or min(known)[0] <= seconds):
            return self.measured[min(known)[1]][0]
        return Candidate(planned.on(numbers), method)


def _part(cluster: Cluster, accelerators: Collection[int]) -> Cluster:
    """Return some accelerators of a cluster; those beyond it are on hosts like its last."""
    numbers, there = sorted(accelerators), cluster.accelerators
    part = cluster.part([min(number, there - 1) for number in numbers])
    if cluster.between_hosts is None:
        return part
    # As hosts of a Ray cluster are found for them (`hosts_of`).
    usual = cluster.host_of.count(cluster.host_of[-1])
    firsts = [number - (number - there) % usual for number in numbers]
    return cluster.with_hosts(
        host if number < there else host.model_copy(update={"name": f"another-{first}"})
        for number, first, host in zip(numbers, firsts, part.hosts, strict=True)
    )


@dataclass(frozen=True)
class Elastic:
    """A training goes on with ``least`` to ``most`` workers, as many as there are.

    Attributes:
        least: with fewer it ends.
        most: that it begins with, and grows to again.
        profile: what the operators cost, to plan for what is left; by default the ``profile.json``
            next to the placement file, and without one an even cut.

    Raises:
        InvalidInput: these are no such numbers.
    """

    least: int
    most: int
    profile: Profile | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most <= MOST_ACCELERATORS:
            raise InvalidInput(
                f"elastic from {self.least} to {self.most} workers: expected 1 or more, and no "
                "fewer at most than at least, such as 2:4"
            )

    @classmethod
    def parse(cls, text: str) -> Elastic:
        """Read ``MIN:MAX``.

        Raises:
            InvalidInput: it is something else.
        """
        least, colon, most = text.partition(":")
        if not (colon and least.isdecimal() and most.isdecimal() and len(text) < 20):
            raise InvalidInput(f"--elastic {text}: expected MIN:MAX, such as 2:4")
        return cls(int(least), int(most))

    def planner(self, document: PlacementFile, graph: OpGraph, path: Path | None) -> Replanner:
        """Return what plans for the workers that are left of a placement, in ``path`` if in any.

        Raises:
            InvalidInput: the profile is of another model, or cannot be read.
        """
        found = self.profile
        if found is None and path is not None:
            found = profile_beside(path, graph)
        if found is not None:
            found.check_is_of(graph.model, graph.fingerprint)
        measured = () if path is None else measured_beside(path, document)
        return Replanner(document, graph, found, measured)


def profile_beside(placement: Path, graph: OpGraph) -> Profile | None:
    """Return the ``profile.json`` in the folder of a placement, None if none is of its model.

    Raises:
        InvalidFile: it cannot be read.
    """
    path = placement.parent / "profile.json"
    if not path.exists():
        return None
    profile = read_document(path, Profile)
    return profile if profile.graph.fingerprint == graph.fingerprint else None


def measured_beside(placement: Path, document: PlacementFile) -> tuple[Measured, ...]:
    """Return what was measured for a placement's model and cluster, in the folder of its file.

    Of several runs it is the one in the middle. What failed, and what was cut short, is left out.

    Raises:
        InvalidFile: ``measurements.jsonl`` cannot be read.
    """
    path = placement.parent / "measurements.jsonl"
    if not path.exists():
        return ()
    header, entries = read_measurements(path)
    accelerators = document.cluster.accelerators
    if (header.graph_fingerprint, header.accelerators) != (
        document.graph_fingerprint,
        accelerators,
    ):
        return ()
    runs: dict[Candidate, list[Outcome]] = {}
    for entry in entries:
        runs.setdefault(entry.candidate(header.method), []).append(entry.outcome)
    return tuple(
        (candidate, median_measurement(measured))
        for candidate, outcomes in runs.items()
        if (measured := [o for o in outcomes if isinstance(o, Measurement) and not o.cut_short])
    )


def replanned(
    document: PlacementFile,
    graph: OpGraph,
    workers: int,
    profile: Profile | None = None,
    measured: Sequence[Measured] = (),
) -> PlacementFile:
    """Return a placement of the same model, method and optimizer for another number of workers.

    Args:
        document: the placement to be replaced.
        graph: of its model.
        workers: how many.
        profile: what its operators cost; without one they are cut evenly by sizes.
        measured: candidates that ran on the document's cluster.

    Raises:
        InvalidInput: no placement for so many workers can be run.
    """
    if profile is not None:
        profile.check_is_of(graph.model, graph.fingerprint)
    return Replanner(document, graph, profile, measured).file(workers)
