"""A placement for another number of accelerators than it was made for: fewer, more, or others."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from drlpp.capturing.graph import OpGraph
from drlpp.costs.profiles.estimated_profile import estimate_profile
from drlpp.costs.profile import Profile
from drlpp.errors import InvalidInput, InvalidPlacement
from drlpp.io.documents import read_document
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.placement import Placement
from drlpp.placement.placement_file import PlacementFile
from drlpp.planners.baselines.gpipe import gpipe
from drlpp.planners.best_simulated import best_simulated
from drlpp.planners.problem.problem import PlanningProblem
from drlpp.specs.cluster import MOST_ACCELERATORS, Cluster

EVEN, PLANNED = "even cut", "planned with its profile"


@dataclass(frozen=True)
class Replanner:
    """Plans for those accelerators that there are.

    With a profile, all quick planners propose and the simulator decides
    (:func:`~drlpp.planners.best_simulated.best_simulated`). Without one, the operators are cut
    into as many stages as there are accelerators, evenly by sizes.

    Attributes:
        document: the placement to be replaced; its cluster describes the accelerators. Those beyond
            it are taken to be like its last.
        graph: of the model.
        profile: what the operators cost, None if nobody has measured it.
    """

    document: PlacementFile
    graph: OpGraph
    profile: Profile | None = None

    def cluster(self, accelerators: Collection[int]) -> Cluster:
        """Return the cluster of these accelerators, numbered anew in their order."""
        known = self.document.cluster
        last = known.accelerators - 1
        return known.part([min(accelerator, last) for accelerator in sorted(accelerators)])

    def plan(self, accelerators: Collection[int], most: int) -> ExecutionPlan:
        """Return the plan for some of accelerators 0 … ``most`` − 1.

        The file's placement is kept where it needs none but these, and these are all among those
        that its cluster has.

        Raises:
            NothingFits: no placement for these fits into memory.
            InvalidInput: the method cannot run on these.
        """
        numbers = sorted(accelerators)
        placement = self.document.resolve(self.graph)
        is_known = numbers[-1] < self.document.cluster.accelerators
        if not (is_known and set(placement.accelerators) <= set(numbers)):
            placement = self._new_placement(self.cluster(numbers)).on(numbers)
        candidate = Candidate(placement, self.document.method)
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
        placement = self._new_placement(cluster)
        return PlacementFile.create(
            self.document.model,
            self.graph,
            placement,
            cluster,
            method=self.document.method,
            optimizer=self.document.optimizer,
            found_by=self.how,
        )

    @property
    def how(self) -> str:
        """How placements are found, in a word or two."""
        return EVEN if self.profile is None else PLANNED

    def _new_placement(self, cluster: Cluster) -> Placement:
        method, optimizer = self.document.method, self.document.optimizer
        profile = self.profile or estimate_profile(self.graph)
        problem = PlanningProblem.profiled(profile, cluster, method, optimizer)
        if self.profile is None:
            return gpipe(problem).placement
        return best_simulated(problem, method, deepen=False).best.plan.placement


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
        _check_same_model(found, graph)
        return Replanner(document, graph, found)


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


def replanned(
    document: PlacementFile, graph: OpGraph, workers: int, profile: Profile | None = None
) -> PlacementFile:
    """Return a placement of the same model, method and optimizer for another number of workers.

    Args:
        document: the placement to be replaced.
        graph: of its model.
        workers: how many.
        profile: what its operators cost; without one they are cut evenly by sizes.

    Raises:
        InvalidInput: no placement for so many workers can be run.
    """
    _check_same_model(profile, graph)
    return Replanner(document, graph, profile).file(workers)


def _check_same_model(profile: Profile | None, graph: OpGraph) -> None:
    if profile is not None and profile.graph.fingerprint != graph.fingerprint:
        raise InvalidInput(
            f"the profile is of {profile.graph.model} (graph {profile.graph.fingerprint}), but "
            f"the model is {graph.model} ({graph.fingerprint}); profile this model"
        )
