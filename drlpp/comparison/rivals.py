"""What a learned placement has to beat: the best of each kind of what a user has without an agent.

Plain PyTorch with any number of threads; data parallelism and PipeDream's planner with any number
of the workers; GPipe and flushed 1F1B with any number of stages and of microbatches, split evenly
by the profile; the exact planner, given all workers; and what ``drlpp plan`` finds.
Where a kind has more candidates than can be measured, the simulator ranks them, and the first run
in a heat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from drlpp.comparison.contenders import DATA_PARALLEL, LARGE_BATCH, PLAIN, PLAN, Contender, Heat
from drlpp.costs.profile import Profile
from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement
from drlpp.placement.plan import Plan
from drlpp.planners import PLANNERS, PlanningProblem, Space, best_plan
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
    planned: Callable[[], Sequence[Plan]] | None = None,
) -> list[Heat]:
    """Return a heat for each kind of rival that is possible on these workers.

    Data parallelism (with an update for every minibatch, and with an update for as many minibatches
    as workers), GPipe and flushed 1F1B are methods as well as placements, and run synchronously;
    the planners' placements run with the session's method, at a depth of the space where all of
    them are asked together.

    Args:
        session: with the method and the optimizer.
        profile, cluster: that planners plan with, and the simulator ranks by.
        space: whether the depth may be chosen, and how stale a stage may be.
        planned: gives what the baselines propose in the space, if they were asked already.
    """
    plain = [
        Contender(found_by=PLAIN, method=session.method, threads=threads)
        for threads in plain_threads(session, cluster)
    ]
    placed = _Rivals(session, profile, cluster)
    kinds = [plain, placed.data_parallel(), placed.large_batch()]
    kinds += [placed.flushed(GPIPE), placed.flushed(FLUSHED_1F1B)]
    kinds += [placed.planned("pipedream"), placed.exact(), placed.best_planned(space, planned)]
    return [Heat(candidates=tuple(found)) for found in kinds if found]


def data_parallel_on(workers: int, method: Method) -> Method:
    """Return the method that divides each minibatch among workers and makes it one update."""
    options = {"schedule": FLUSHED_1F1B.name, "microbatches": workers}
    return choose_method(SYNC.name, options, method)


def with_equal_numbers(
    heats: Sequence[Heat], known: Sequence[Contender], cluster: Cluster
) -> list[Heat]:
    """Return heats in which what equals a known contender on this cluster is placed as it is.

    Accelerators of one host that do not differ are interchangeable, so that placements that differ
    by their numbers alone are one candidate.
    """
    placed = {
        renumbered(one.placement, cluster): one.placement
        for one in reversed(known)
        if one.placement is not None
    }

    def alike(one: Contender) -> Contender:
        if one.placement is None:
            return one
        found = placed.get(renumbered(one.placement, cluster), one.placement)
        return one.model_copy(update={"placement": found})

    return [
        heat.model_copy(update={"candidates": tuple(map(alike, heat.candidates))}) for heat in heats
    ]


def renumbered(placement: Placement, cluster: Cluster) -> Placement:
    """Return the same for all placements that differ by interchangeable accelerators alone.

    These are numbered in the order in which stages name them.
    """
    lines = cluster.part(range(cluster.accelerators)).hosts
    alone = len(set(cluster.host_of)) == cluster.accelerators
    same: dict[str, list[int]] = {}
    kind_of = {}
    for number, line in enumerate(lines):
        host = "" if alone else str(cluster.host_of[number])
        kind_of[number] = f"{host} {line.model_copy(update={'name': 'any'})!r}"
        same.setdefault(kind_of[number], []).append(number)
    numbers: dict[int, int] = {}
    for stage in placement.stages:
        for accelerator in stage.accelerators:
            if accelerator not in numbers:
                numbers[accelerator] = same[kind_of[accelerator]].pop(0)
    return Placement(
        stages=tuple(
            stage.model_copy(
                update={
                    "operators": tuple(sorted(stage.operators)),
                    "accelerators": tuple(numbers[a] for a in stage.accelerators),
                }
            )
            for stage in placement.stages
        )
    )


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
        self._own = session.method
        self._profile = profile
        self._cluster = cluster
        self._order = sorted(range(cluster.accelerators), key=lambda a: -cluster.speeds[a])

    def data_parallel(self) -> list[Contender]:
        """Return data parallelism that divides each minibatch evenly among 2, 3, … workers."""
        batch = self._session.captured.task.batch_size
        found = []
        for workers in range(2, self._cluster.accelerators + 1):
            if batch % workers == 0:
                method = data_parallel_on(workers, self._own)
                placement = self._on("data-parallel", workers, method)
                if placement is not None:
                    found.append(Contender.of(Candidate(placement, method), DATA_PARALLEL))
        return self._ranked(found)

    def large_batch(self) -> list[Contender]:
        """Return data parallelism with a minibatch for each of 2, 3, … workers."""
        options = {"schedule": ONE_F_ONE_B.name, "microbatches": 1}
        method = choose_method(SYNC.name, options, self._own)
        found = self._on_any_number("data-parallel", method, least=2)
        return self._ranked(one.model_copy(update={"found_by": LARGE_BATCH}) for one in found)

    def planned(self, name: str) -> list[Contender]:
        """Return a planner's placements, given 1, 2, … workers."""
        return self._ranked(self._on_any_number(name, self._own))

    def exact(self) -> list[Contender]:
        """Return the exact planner's placement.

        Given all workers, the planner takes as many as are of use.
        """
        method = self._own
        placement = PLANNERS["exact"](self._problem(method, self._cluster)).placement
        return [Contender.of(Candidate(placement, method), "exact")]

    def best_planned(
        self, space: Space, planned: Callable[[], Sequence[Plan]] | None
    ) -> list[Contender]:
        """Return what ``drlpp plan`` finds, and its depth."""
        problem = self._problem(self._own, self._cluster)
        try:
            best = best_plan(problem, space, begin_with=planned() if planned else None)
        except InvalidInput:
            # Nothing fits, or nothing that is fresh enough.
            return []
        return [Contender.of(best.candidate, PLAN)]

    def flushed(self, kind: ScheduleKind) -> list[Contender]:
        """Return even splits into 2, 3, … stages, with every number of microbatches."""
        batch = self._session.captured.task.batch_size
        found = []
        for microbatches in range(1, batch + 1):
            if batch % microbatches == 0:
                options = {"schedule": kind.name, "microbatches": microbatches}
                method = choose_method(SYNC.name, options, self._own)
                splits = self._on_any_number("gpipe", method)
                found += [
                    split.model_copy(update={"found_by": kind.name})
                    for split in splits
                    if split.placement is not None and len(split.placement.stages) > 1
                ]
        return self._ranked(found)

    def _on_any_number(self, planner: str, method: Method, least: int = 1) -> Iterator[Contender]:
        known = set()
        for workers in range(least, self._cluster.accelerators + 1):
            placement = self._on(planner, workers, method)
            if placement is not None and placement.canonical not in known:
                known.add(placement.canonical)
                yield Contender.of(Candidate(placement, method), planner)

    def _on(self, planner: str, workers: int, method: Method) -> Placement | None:
        """Return a planner's placement on so many workers; None if it has none."""
        chosen = sorted(self._order[:workers])
        try:
            placement = PLANNERS[planner](
                self._problem(method, self._cluster.part(chosen))
            ).placement
        except InvalidInput:
            # Such as one that does not fit into the memory of so few.
            return None
        return placement.on(chosen)

    def _problem(self, method: Method, cluster: Cluster) -> PlanningProblem:
        return PlanningProblem.profiled(self._profile, cluster, method, self._session.optimizer)

    def _ranked(self, candidates: Iterable[Contender]) -> list[Contender]:
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
