"""What a learned placement has to beat: the best of each kind of what a user has without an agent.

Plain PyTorch with any number of threads; data parallelism and PipeDream's planner with any number
of the workers; GPipe and flushed 1F1B with any number of stages and of microbatches, split evenly
by the profile; the exact planner, given all workers; and what
``drlpp plan`` proposes: the best of what all planners do, in the simulator and at its best depth.
Where a kind has more candidates than can be measured, the simulator ranks them, and the first run
in a heat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from drlpp.comparison.contenders import PLAIN, PLAN, Contender, Heat
from drlpp.costs.profile import Profile
from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.planners import PLANNERS, PlanningProblem, Space
from drlpp.planners.best_searched import planned_in
from drlpp.planners.best_simulated import Choice
from drlpp.runtime.device.emulation import available_cores
from drlpp.runtime.session.session import ClusterSession
from drlpp.schedule.kinds.flushed_1f1b import FLUSHED_1F1B
from drlpp.schedule.kinds.gpipe import GPIPE
from drlpp.schedule.kinds.kind import ScheduleKind
from drlpp.schedule.kinds.one_f_one_b import ONE_F_ONE_B
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.schedule.weight_policies import SYNC
from drlpp.simulator import simulate
from drlpp.specs.cluster import Cluster

MOST_CANDIDATES = 8
"""How many of a kind are measured; a heat of eight takes 14 measurements."""

_SIMULATED_MINIBATCHES = 12


def rival_heats(
    session: ClusterSession,
    profile: Profile,
    cluster: Cluster,
    space: Space,
    planned: Callable[[], Choice] | None = None,
) -> list[Heat]:
    """Return a heat for each kind of rival that is possible on these workers.

    Data parallelism, GPipe and flushed 1F1B are methods as well as placements, and run
    synchronously; the planners' placements run with the session's method, at a depth of the space
    where all of them are asked together.

    Args:
        session: with the method and the optimizer.
        profile, cluster: that planners plan with, and the simulator ranks by.
        space: whether the depth may be chosen, and how stale a stage may be.
        planned: gives what quick planners propose in the space, if somebody has asked them already.
    """
    plain = [
        Contender(found_by=PLAIN, method=session.method, threads=threads)
        for threads in plain_threads(session, cluster)
    ]
    placed = _Rivals(session, profile, cluster)
    kinds = [plain, placed.data_parallel(), placed.flushed(GPIPE), placed.flushed(FLUSHED_1F1B)]
    kinds += [placed.planned("pipedream"), placed.exact(), placed.best_planned(space, planned)]
    return [Heat(candidates=tuple(found)) for found in kinds if found]


def plain_threads(session: ClusterSession, cluster: Cluster) -> list[int | None]:
    """Return numbers of threads for plain PyTorch.

    They are 1, 2, 4, … and all cores of the controller's host.

    On a GPU they do not matter, and an emulated accelerator is one thread.
    """
    if cluster.devices[0] == "cuda":
        return [None]
    if min(session.speeds) < 1:
        return [1]
    cores = len(available_cores())
    return [*(1 << power for power in range(cores.bit_length()) if 1 << power < cores), cores]


class _Rivals:
    """Candidates that are placements."""

    def __init__(self, session: ClusterSession, profile: Profile, cluster: Cluster) -> None:
        self._session = session
        self._profile = profile
        self._cluster = cluster
        self._order = sorted(range(cluster.accelerators), key=lambda a: -cluster.speeds[a])

    def data_parallel(self) -> list[Contender]:
        """Return data parallelism on 1, 2, … workers."""
        method = choose_method(SYNC.name, {"schedule": ONE_F_ONE_B.name}, self._session.method)
        return self._ranked(self._on_any_number("data-parallel", method))

    def planned(self, name: str) -> list[Contender]:
        """Return a planner's placements, given 1, 2, … workers."""
        return self._ranked(self._on_any_number(name, self._session.method))

    def exact(self) -> list[Contender]:
        """Return the exact planner's placement.

        Given all workers, the planner takes as many as are of use.
        """
        method = self._session.method
        placement = PLANNERS["exact"](self._problem(method, self._cluster)).placement
        return [Contender.of(Candidate(placement, method), "exact")]

    def best_planned(self, space: Space, planned: Callable[[], Choice] | None) -> list[Contender]:
        """Return what ``drlpp plan`` chooses of all that planners propose, and its depth."""
        method = self._session.method
        propose = planned or partial(planned_in, space, self._problem(method, self._cluster))
        try:
            best = propose().best
        except InvalidInput:
            # Nothing fits, or nothing that is fresh enough.
            return []
        chosen = method.model_copy(update={"in_flight_per_link": best.depth.per_link})
        return [Contender.of(Candidate(best.plan.placement, chosen), PLAN)]

    def flushed(self, kind: ScheduleKind) -> list[Contender]:
        """Return even splits into 2, 3, … stages, with every number of microbatches."""
        batch = self._session.captured.task.batch_size
        found = []
        for microbatches in range(1, batch + 1):
            if batch % microbatches == 0:
                options = {"schedule": kind.name, "microbatches": microbatches}
                method = choose_method(SYNC.name, options, self._session.method)
                splits = self._on_any_number("gpipe", method)
                found += [
                    split.model_copy(update={"found_by": kind.name})
                    for split in splits
                    if split.placement is not None and len(split.placement.stages) > 1
                ]
        return self._ranked(iter(found))

    def _on_any_number(self, planner: str, method: Method) -> Iterator[Contender]:
        known = set()
        for workers in range(1, self._cluster.accelerators + 1):
            chosen = sorted(self._order[:workers])
            problem = self._problem(method, self._cluster.part(chosen))
            try:
                placement = PLANNERS[planner](problem).placement
            except InvalidInput:
                # Such as one that does not fit into the memory of so few.
                continue
            placement = placement.on(chosen)
            if placement.canonical not in known:
                known.add(placement.canonical)
                yield Contender.of(Candidate(placement, method), planner)

    def _problem(self, method: Method, cluster: Cluster) -> PlanningProblem:
        return PlanningProblem.profiled(self._profile, cluster, method, self._session.optimizer)

    def _ranked(self, candidates: Iterator[Contender]) -> list[Contender]:
        """Return the most promising by the simulator, the fastest first; all if they are few."""
        found = list(candidates)
        if len(found) <= MOST_CANDIDATES:
            return found
        return sorted(found, key=self._simulated)[:MOST_CANDIDATES]

    def _simulated(self, contender: Contender) -> tuple[bool, float]:
        candidate = contender.candidate
        assert candidate is not None
        problem = self._problem(candidate.method, self._cluster)
        simulation = simulate(
            problem.workload,
            self._cluster,
            candidate.placement,
            candidate.method,
            _SIMULATED_MINIBATCHES,
            problem.memory,
        )
        too_large = simulation.without_room(self._cluster) is not None
        return too_large, simulation.seconds_per_minibatch
