"""A placement for another number of accelerators than it was made for: fewer, more, or others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from drlpp.capturing.graph import OpGraph
from drlpp.costs.profile import Profile
from drlpp.errors import InvalidInput, InvalidPlacement
from drlpp.io.documents import read_document
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import LinkUsage, Measurement
from drlpp.placement.placement_file import PlacementFile
from drlpp.planners.baselines import gpipe
from drlpp.planners.calibration.calibration import Calibration
from drlpp.planners.planning import best_plan
from drlpp.planners.problem import PlanningProblem
from drlpp.planners.search import Judge, Limits, Space
from drlpp.specs.cluster import MOST_ACCELERATORS, Cluster, merged

EVEN, PLANNED = "even cut", "planned with its profile"

_SHORT = Limits(judged=2_000, patience=4)
"""Of a search for which a training may be waiting."""

_NOISE = 0.2
"""Slow accelerators whose factors differ by less count as equally slow."""


@dataclass(frozen=True)
class Replanner:
    """Plans for those accelerators that there are.

    With a profile it is the best that a short search finds from the baselines' plans
    (:func:`~drlpp.planners.planning.best_plan`). Without one, the operators are cut into as many
    stages as there are accelerators, evenly by sizes. What the method says of each stage that there
    was becomes one value for all (:attr:`drlpp.schedule.method.Method.for_any_stages`).

    Attributes:
        document: the placement to be replaced; its cluster describes the accelerators. Those beyond
            it are taken to be like its last, on hosts like its last; or on that host, where no link
            between hosts is known.
        graph: of the model.
        profile: what the operators cost, None if nobody has measured it.
        observed: what the workers of plans did, or would have done if none were slower than
            declared, which corrects the profile.
        links: the messages that were timed last, the slowest of each level.
        slower: how many times as long as declared accelerators compute now; 1 if not named.

    Raises:
        InvalidInput: the profile is of another model.
    """

    document: PlacementFile
    graph: OpGraph
    profile: Profile | None = None
    observed: Mapping[ExecutionPlan, Measurement] = field(default_factory=dict)
    links: tuple[LinkUsage, ...] = ()
    slower: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.profile is not None:
            self.profile.check_is_of(self.graph.model, self.graph.fingerprint)

    def cluster(self, accelerators: Collection[int]) -> Cluster:
        """Return the cluster of these accelerators, numbered anew in their order."""
        cluster = self.document.cluster
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

    def plan(self, accelerators: Collection[int], most: int) -> ExecutionPlan:
        """Return the plan for some of accelerators 0 … ``most`` − 1.

        The file's placement is kept where it needs none but these, and these are all among those
        that its cluster has; of a training that was observed, only if nothing faster is found.

        Raises:
            NothingFits: no placement for these fits into memory.
            InvalidInput: the method cannot run on these.
        """
        numbers = sorted(accelerators)
        candidate = Candidate(self.document.resolve(self.graph), self.document.method)
        is_known = numbers[-1] < self.document.cluster.accelerators
        if not (is_known and set(candidate.placement.accelerators) <= set(numbers)):
            candidate = self._new_candidate(numbers)
        elif self.observed:
            with suppress(InvalidInput):
                new = self._new_candidate(numbers)
                candidate = min(candidate, new, key=self._judge(most).exactly)
        return ExecutionPlan.of(candidate, self.graph, most)

    def corrected(self, plan: ExecutionPlan, seen: Measurement) -> Replanner:
        """Return what plans with the costs that a plan had last.

        Its workers are taken to have been as slow as is known. Without a profile it is the same.
        """
        if self.profile is None:
            return self
        workers = tuple(
            usage.model_copy(
                update={"busy_seconds": usage.busy_seconds / self.slower.get(usage.worker, 1.0)}
            )
            for usage in seen.workers
        )
        usual = seen.model_copy(update={"workers": workers, "links": ()})
        return replace(self, observed={**self.observed, plan: usual})

    def timed(self, links: Sequence[LinkUsage]) -> Replanner:
        """Return what plans with the times that messages take.

        The slowest link within a host, and between hosts, stands for all: a pipeline waits for it.
        """
        cluster = self.cluster(range(1 + max(max(one.sender, one.receiver) for one in links)))

        def slower(one: LinkUsage) -> float:
            return one.seconds / cluster.link(one.sender, one.receiver).seconds(one.bytes_)

        ways = sorted(links, key=slower)
        slowest = {cluster.level(one.sender, one.receiver): one for one in ways}
        return replace(self, links=tuple(slowest.values()))

    def slowed(self, slower: Mapping[int, float]) -> Replanner:
        """Return what plans for accelerators that compute so many times as long as declared.

        Those of nearly the same factor get the same, so that equal ones stay equal to planners.
        """
        factors = merged([*slower.values()], _NOISE)
        return replace(self, slower=dict(zip(slower, factors, strict=True)))

    def slowness(self, plan: ExecutionPlan, seen: Measurement) -> dict[int, float]:
        """Return how many times as long as declared workers computed; none without a profile."""
        return self._calibration.slowness(plan.candidate, seen) if self.observed else {}

    def seconds(self, plan: ExecutionPlan) -> float:
        """Return the seconds that a minibatch of a plan is predicted to take."""
        return self._judge(plan.accelerators).exactly(plan.candidate)

    def _judge(self, most: int) -> Judge:
        return Judge(self._problem(range(most)), Space(self.document.method, frozenset()))

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

    def _new_candidate(self, numbers: Sequence[int]) -> Candidate:
        """Return the best for these accelerators that can be planned."""
        method, problem = self.document.method.for_any_stages, self._problem(numbers)
        if self.profile is None:
            planned = gpipe(problem).placement
        else:
            planned = best_plan(problem, Space(method, frozenset()), limits=_SHORT).placement
        return Candidate(planned.on(numbers), method)

    @cached_property
    def _calibration(self) -> Calibration:
        """The problem of all accelerators, corrected by what was observed."""
        most = next(iter(self.observed)).accelerators
        found = Calibration(replace(self, observed={}, slower={})._problem(range(most)))
        for plan, seen in self.observed.items():
            found.observe(plan.candidate, seen)
        found.observe(plan.candidate, seen.model_copy(update={"workers": (), "links": self.links}))
        return found

    def _problem(self, numbers: Sequence[int]) -> PlanningProblem:
        """Return the problem of these accelerators, numbered anew."""
        cluster = self.cluster(numbers)
        if self.slower:
            speeds = zip(numbers, cluster.speeds, strict=True)
            cluster = cluster.with_speeds([v / self.slower.get(k, 1.0) for k, v in speeds])
        problem = PlanningProblem.profiled(
            self.profile or Profile.estimated(self.graph),
            cluster,
            self.document.method.for_any_stages,
            self.document.optimizer,
        )
        if not self.observed:
            return problem
        found = self._calibration.fit()
        # What ran for long fits, so memory is as declared.
        cluster = found.cluster.with_hosts(cluster.hosts)
        return replace(problem, workload=found.workload, cluster=cluster)


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
            found = profile_beside(path, graph.fingerprint)
        return Replanner(document, graph, found)


def profile_beside(placement: Path, fingerprint: str) -> Profile | None:
    """Return the ``profile.json`` in the folder of a placement, None if none is of its model.

    Raises:
        InvalidFile: it cannot be read.
    """
    path = placement.parent / "profile.json"
    if not path.exists():
        return None
    profile = read_document(path, Profile)
    return profile if profile.graph.fingerprint == fingerprint else None
