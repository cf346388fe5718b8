"""What a learned placement has to beat: everything that a user has without an agent.

Each kind of rival is a row of :data:`RIVALS`: its name, whether users have it today, and a function
that gives its candidates on these workers, all synchronous but for those of planners. Where there
are more than can be measured, the simulator ranks them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from drlpp.costs.profile import Profile
from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement
from drlpp.placement.plan import Plan
from drlpp.planners import PLANNERS, PlanningProblem, Space, best_plan
from drlpp.runtime.device.emulation import available_cores
from drlpp.runtime.session.session import ClusterSession
from drlpp.schedule.kinds.alternating import FLUSHED_1F1B, GPIPE, ONE_F_ONE_B
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.schedule.weight_policies import SYNC
from drlpp.simulator import simulate
from drlpp.specs.cluster import Cluster

MOST_CANDIDATES = 8
"""How many of a kind are measured; a heat of eight takes 14 measurements."""

_SIMULATED_MINIBATCHES = 12


@dataclass(frozen=True)
class Alone:
    """Plain PyTorch in one process, with so many threads of torch; None where a GPU computes."""

    threads: int | None


Found = Candidate | Alone


@dataclass(frozen=True)
class Grounds:
    """What rivals are made for.

    Attributes:
        session: the workers, with the method and the optimizer.
        profile, cluster: that planners plan with, and the simulator ranks by.
        space: whether the depth may be chosen, and how stale a stage may be.
        planned: gives what the baselines propose in the space, if they were asked already.
    """

    session: ClusterSession
    profile: Profile
    cluster: Cluster
    space: Space
    planned: Callable[[], Sequence[Plan]] | None = None

    @property
    def method(self) -> Method:
        """The method that was asked for."""
        return self.session.method

    @property
    def batch_size(self) -> int:
        """Samples of a minibatch."""
        return self.session.captured.task.batch_size

    def synchronous(self, schedule: str, microbatches: int) -> Method:
        """Return the method with a synchronous schedule instead."""
        options = {"schedule": schedule, "microbatches": microbatches}
        return choose_method(SYNC.name, options, self.method)

    def problem(self, method: Method, cluster: Cluster | None = None) -> PlanningProblem:
        """Return what planners are asked; of a part of the cluster, if one is given."""
        on = cluster or self.cluster
        return PlanningProblem.profiled(self.profile, on, method, self.session.optimizer)

    def on_any_number(self, planner: str, method: Method, least: int = 1) -> Iterator[Candidate]:
        """Yield a planner's placements on the fastest 1, 2, … workers; none twice."""
        known = set()
        for workers in range(least, self.cluster.accelerators + 1):
            placement = self.on(planner, workers, method)
            if placement is not None and placement.canonical not in known:
                known.add(placement.canonical)
                yield Candidate(placement, method)

    def on(self, planner: str, workers: int, method: Method) -> Placement | None:
        """Return a planner's placement on so many workers, the fastest; None if it has none."""
        order = sorted(range(self.cluster.accelerators), key=lambda a: -self.cluster.speeds[a])
        chosen = sorted(order[:workers])
        try:
            problem = self.problem(method, self.cluster.part(chosen))
            return PLANNERS[planner](problem).placement.on(chosen)
        except InvalidInput:
            # Such as one that does not fit into the memory of so few.
            return None

    def seconds(self, candidate: Candidate) -> tuple[bool, float]:
        """Return whether a candidate is too large, and its simulated seconds per minibatch."""
        problem = self.problem(candidate.method)
        played = simulate(
            problem.workload,
            self.cluster,
            candidate.placement,
            candidate.method,
            _SIMULATED_MINIBATCHES,
            problem.memory,
        )
        return played.without_room(self.cluster) is not None, played.seconds_per_minibatch


@dataclass(frozen=True)
class Rival:
    """A kind of what a user has without an agent.

    Attributes:
        name: of the kind.
        find: returns its candidates.
        today: whether a user has it without this project: plain PyTorch and data parallelism.
    """

    name: str
    find: Callable[[Grounds], Iterable[Found]]
    today: bool = False

    def candidates(self, grounds: Grounds) -> list[Found]:
        """Return its candidates, the most promising by the simulator if they are many."""
        found = list(self.find(grounds))
        placed = [one for one in found if isinstance(one, Candidate)]
        if len(placed) <= MOST_CANDIDATES:
            return found
        return list(sorted(placed, key=grounds.seconds)[:MOST_CANDIDATES])


def _plain(grounds: Grounds) -> Iterator[Alone]:
    """Yield plain PyTorch with 1, 2, 4, … threads and with all cores of the controller's host.

    On a GPU they do not matter, and an emulated accelerator is one thread.
    """
    if grounds.cluster.devices[0] == "cuda":
        yield Alone(None)
    elif min(grounds.session.speeds) < 1:
        yield Alone(1)
    else:
        cores = len(available_cores())
        threads = [1 << power for power in range(cores.bit_length())]
        yield from map(Alone, dict.fromkeys([*(t for t in threads if t < cores), cores]))


def _data_parallel(grounds: Grounds) -> Iterator[Candidate]:
    """Yield each minibatch divided evenly among 2, 3, … workers, one update, as torch's DDP."""
    for workers in range(2, grounds.cluster.accelerators + 1):
        if grounds.batch_size % workers == 0:
            method = grounds.synchronous(FLUSHED_1F1B.name, workers)
            placement = grounds.on("data-parallel", workers, method)
            if placement is not None:
                yield Candidate(placement, method)


def _large_batch(grounds: Grounds) -> Iterator[Candidate]:
    """Yield data parallelism in which each of k workers has a whole minibatch: an update of k."""
    method = grounds.synchronous(ONE_F_ONE_B.name, 1)
    yield from grounds.on_any_number("data-parallel", method, least=2)


def _flushed(schedule: str, grounds: Grounds) -> Iterator[Candidate]:
    """Yield even splits into 2, 3, … stages, with every number of microbatches."""
    for microbatches in range(1, grounds.batch_size + 1):
        if grounds.batch_size % microbatches == 0:
            method = grounds.synchronous(schedule, microbatches)
            splits = grounds.on_any_number("gpipe", method)
            yield from (split for split in splits if len(split.placement.stages) > 1)


def _pipedream(grounds: Grounds) -> Iterator[Candidate]:
    yield from grounds.on_any_number("pipedream", grounds.method)


def _exact(grounds: Grounds) -> Iterator[Candidate]:
    """Yield the exact planner's placement, which takes as many workers as are of use, if any."""
    placement = grounds.on("exact", grounds.cluster.accelerators, grounds.method)
    if placement is not None:
        yield Candidate(placement, grounds.method)


def _planned(grounds: Grounds) -> Iterator[Candidate]:
    """Yield what ``drlpp plan`` finds, and its depth, unless nothing fits or is fresh enough."""
    planned = grounds.planned() if grounds.planned else None
    try:
        yield best_plan(
            grounds.problem(grounds.method), grounds.space, begin_with=planned
        ).candidate
    except InvalidInput:
        return


PLAIN = "plain PyTorch"
DATA_PARALLEL = "data-parallel"

RIVALS = {
    rival.name: rival
    for rival in (
        Rival(PLAIN, _plain, today=True),
        Rival(DATA_PARALLEL, _data_parallel, today=True),
        Rival("large-batch", _large_batch, today=True),
        Rival(GPIPE.name, partial(_flushed, GPIPE.name)),
        Rival(FLUSHED_1F1B.name, partial(_flushed, FLUSHED_1F1B.name)),
        Rival("pipedream", _pipedream),
        Rival("exact", _exact),
        Rival("plan", _planned),
    )
}
"""All kinds, in the order of tables."""
