"""What a learned placement has to beat: everything that a user has without an agent.

Each kind of rival is a row of :data:`RIVALS`. In a race by time per minibatch there is a heat for
each kind; where there are more candidates than can be measured, the simulator ranks them. All are
synchronous but those of planners.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from drlpp.costs.profile import Profile
from drlpp.costs.ways_of_training import WAYS, PredictedWay, WaysOfTraining
from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import FailedMeasurement, Outcome
from drlpp.placement.placement import Placement
from drlpp.planners import PLANNERS, PlanningProblem, Space, best_plan
from drlpp.planners.map import ways_of_training
from drlpp.racing.contenders import Contender
from drlpp.racing.plain import measure_plain
from drlpp.racing.race import cost_of, heat
from drlpp.runtime.device.compiling import why_not_compiled
from drlpp.runtime.device.emulation import available_cores
from drlpp.runtime.ipc.protocol import ParallelWay
from drlpp.runtime.session.session import ClusterSession
from drlpp.schedule.kinds.alternating import FLUSHED_1F1B, GPIPE, ONE_F_ONE_B
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.schedule.weight_policies import SYNC
from drlpp.simulator import simulate
from drlpp.specs.cluster import Cluster

PLAIN = "plain PyTorch"
DATA_PARALLEL = "data-parallel"
LARGE_BATCH = "large-batch"
PARALLEL: tuple[ParallelWay, ...] = ("ddp", "powersgd", "zero-1", "zero-2", "fsdp", "local-sgd")
"""torch's own data parallelism, on the workers."""
DILOCO: ParallelWay = "diloco"
"""A minibatch takes as long as with local SGD, so it trains in races to a loss alone."""
TODAY = (PLAIN, DATA_PARALLEL, LARGE_BATCH, *PARALLEL, DILOCO)
"""What a user has without this project."""
YOURS = "your layout"
"""What a user's own layouts begin with, which are rivals as well."""

MOST_CANDIDATES = 8
"""How many of a kind are measured; a heat of eight takes 14 measurements."""

_LONGEST_SECONDS = 10.0
"""What is slow and has been measured is measured again for about so long."""

_SIMULATED_MINIBATCHES = 12
_HEAT_MINIBATCHES = 10


@dataclass(frozen=True)
class Grounds:
    """What rivals are made for.

    Attributes:
        session: the workers, with the method and the optimizer.
        profile, cluster: that planners plan with, and the simulator ranks by.
        space: whether the depth may be chosen, and how stale a stage may be.
        objective: what a plan minimises, and whether a race weighs samples.
    """

    session: ClusterSession
    profile: Profile
    cluster: Cluster
    space: Space
    objective: str = "seconds"

    @property
    def method(self) -> Method:
        """The method that was asked for."""
        return self.session.method

    @property
    def batch_size(self) -> int:
        """Samples of a minibatch."""
        return self.session.captured.task.batch_size

    @cached_property
    def ways(self) -> WaysOfTraining:
        """What torch's own ways of training are predicted to take."""
        return ways_of_training(self.problem(self.method), self.batch_size)

    def synchronous(self, schedule: str, microbatches: int) -> Method:
        """Return the method with a synchronous schedule instead."""
        options = {"schedule": schedule, "microbatches": microbatches}
        return choose_method(SYNC.name, options, self.method)

    def problem(self, method: Method, cluster: Cluster | None = None) -> PlanningProblem:
        """Return what planners are asked; of a part of the cluster, if one is given."""
        on, optimizer = cluster or self.cluster, self.session.optimizer
        found = PlanningProblem.profiled(self.profile, on, method, optimizer)
        return replace(found, objective=self.objective)

    def weighed(self, one: Contender) -> Contender:
        """Return a contender with the samples that its seconds count times."""
        if self.objective == "seconds":
            return one
        if one.candidate is None:
            if not one.approximates:
                return one
            samples = predicted(self, one.way, one.processes).samples
            return one.model_copy(update={"samples": samples})
        samples = self.problem(one.method).per_second(one.candidate)
        return one.model_copy(update={"samples": samples if math.isfinite(samples) else 0.0})

    def placed(
        self, planner: str, method: Method, numbers: Iterable[int] | None = None
    ) -> Iterator[Candidate]:
        """Yield a planner's placements on the fastest 1, 2, … workers, or these numbers of them.

        None comes twice, and none where the planner has nothing.
        """
        every = range(1, self.cluster.accelerators + 1)
        order = sorted(range(self.cluster.accelerators), key=lambda a: -self.cluster.speeds[a])
        known = set()
        for workers in every if numbers is None else numbers:
            chosen = sorted(order[:workers])
            try:
                problem = self.problem(method, self.cluster.part(chosen))
                placement = PLANNERS[planner](problem).placement.on(chosen)
            except InvalidInput:
                continue  # Such as one that does not fit into the memory of so few.
            if placement.canonical not in known:
                known.add(placement.canonical)
                yield Candidate(placement, method)

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


def _plain(grounds: Grounds) -> Iterator[Contender]:
    """Yield plain PyTorch with 1, 2, 4, … threads and with all cores of the controller's host.

    On a GPU they do not matter, and an emulated accelerator is one thread. With the most threads it
    is compiled, too, unless torch's own TORCH_COMPILE_DISABLE is set. It has as few passes as are
    expected to fit into memory; one if none do, or where batches are normalised.
    """
    whole = next(one for one in grounds.ways.best() if one.name == "plain")
    normalised = any(one.type == "batch_norm" for one in grounds.profile.graph.operators)
    passes = whole.passes if whole.fits and not normalised else 1
    numbers: list[int | None] = [1]
    if grounds.cluster.devices[0] != "cpu":
        numbers = [None]
    elif min(grounds.session.speeds) >= 1:
        cores = len(available_cores())
        powers = (1 << power for power in range(cores.bit_length()))
        numbers = [*(threads for threads in powers if threads < cores), cores]
    as_it_is, compiled = (
        grounds.method.model_copy(update={"compiled": compiled}) for compiled in (False, True)
    )
    for threads in numbers:
        yield Contender(found_by=PLAIN, method=as_it_is, threads=threads, passes=passes)
    if os.environ.get("TORCH_COMPILE_DISABLE", "0") == "1":
        return
    if (reason := why_not_compiled(grounds.cluster.devices[0])) is None:
        yield Contender(found_by=PLAIN, method=compiled, threads=numbers[-1], passes=passes)
    else:
        grounds.session.note(f"{PLAIN} is not compiled for comparison: {reason}")


def _data_parallel(grounds: Grounds) -> Iterator[Candidate]:
    """Yield each minibatch divided evenly among 2, 3, … workers, one update, as torch's DDP."""
    for workers in range(2, grounds.cluster.accelerators + 1):
        if grounds.batch_size % workers == 0:
            method = grounds.synchronous(FLUSHED_1F1B.name, workers)
            yield from grounds.placed(DATA_PARALLEL, method, [workers])


def _parallel(way: ParallelWay, grounds: Grounds) -> Iterator[Contender]:
    """Yield torch's own data parallelism, in 2, 4, … and as many processes as workers.

    DDP sends gradients as they are or in bfloat16. ZeRO-1, PowerSGD and local SGD are there where
    they may help, in as many processes as possible.
    """
    workers = grounds.cluster.accelerators
    numbers = {1 << power for power in range(1, workers.bit_length())} | {workers}
    even = [n for n in sorted(numbers) if n > 1 and grounds.batch_size % n == 0]
    if WAYS[way].approximates and grounds.method.skips_updates:
        # A rank that skips an update alone would wait for an average for ever, and what
        # compression has lost of a gradient that is not finite stays so.
        return
    if WAYS[way].approximates or way == "zero-1":
        even = [n for n in even[-1:] if _helps(grounds, way, n)]
    sent: tuple[ParallelWay, ...] = ("ddp", "ddp-bf16") if way == "ddp" else (way,)
    for processes in even:
        for one in sent:
            contender = by_torch(grounds, one, processes)
            yield contender.model_copy(update={"found_by": way})


def by_torch(grounds: Grounds, way: ParallelWay, processes: int) -> Contender:
    """Return torch's own data parallelism, with averages as rare as links need."""
    found = predicted(grounds, way, processes)
    every = max(found.every // grounds.method.accumulate, 1)
    return Contender(found_by=way, method=grounds.method, way=way, processes=processes, every=every)


def predicted(grounds: Grounds, way: str, processes: int, passes: int = 1) -> PredictedWay:
    """Return what a way of training is predicted to take on the fastest workers."""
    order = sorted(range(grounds.cluster.accelerators), key=lambda a: -grounds.cluster.speeds[a])
    return grounds.ways.of(way, order[:processes], passes)


def _helps(grounds: Grounds, way: ParallelWay, processes: int) -> bool:
    """Return whether ZeRO-1, which sends more, fits where DDP does not; others are sooner there."""
    ddp, one = (predicted(grounds, name, processes) for name in ("ddp", way))
    if way == "zero-1":
        return not ddp.fits
    return ddp.fits and one.seconds_to_loss < ddp.seconds_to_loss


def _large_batch(grounds: Grounds) -> Iterator[Candidate]:
    """Yield data parallelism in which each of k workers has a whole minibatch: an update of k."""
    method = grounds.synchronous(ONE_F_ONE_B.name, 1)
    yield from grounds.placed(DATA_PARALLEL, method, range(2, grounds.cluster.accelerators + 1))


def _flushed(schedule: str, grounds: Grounds) -> Iterator[Candidate]:
    """Yield even splits into 2, 3, … stages, with every number of microbatches."""
    for microbatches in divisors(grounds.batch_size):
        method = grounds.synchronous(schedule, microbatches)
        splits = grounds.placed("gpipe", method)
        yield from (split for split in splits if len(split.placement.stages) > 1)


def _pipedream(grounds: Grounds) -> Iterator[Candidate]:
    """Yield PipeDream's placements, with each number of microbatches that a search may choose."""
    for number in sorted({method.microbatches for method in grounds.space.methods}):
        method = grounds.method.model_copy(update={"microbatches": number})
        yield from grounds.placed("pipedream", method)


def _planned(grounds: Grounds) -> Iterator[Candidate]:
    """Yield what ``drlpp plan`` finds, and its depth, unless nothing fits or is fresh enough."""
    try:
        yield best_plan(grounds.problem(grounds.method), grounds.space).candidate
    except InvalidInput:
        return


RIVALS: dict[str, Callable[[Grounds], Iterable[Candidate | Contender]]] = {
    PLAIN: _plain,
    DATA_PARALLEL: _data_parallel,
    LARGE_BATCH: _large_batch,
    **{way: partial(_parallel, way) for way in PARALLEL},
    GPIPE.name: partial(_flushed, GPIPE.name),
    FLUSHED_1F1B.name: partial(_flushed, FLUSHED_1F1B.name),
    "pipedream": _pipedream,
    "plan": _planned,
}
"""What finds candidates of each kind, in the order of tables; none where workers lack something.

How many minibatches make one update follows from their methods.
"""


def candidates_of(kind: str, grounds: Grounds) -> list[Contender]:
    """Return the candidates of a kind, the most promising by the simulator if they are many.

    What is not judged is left out where others are: seconds alone do not compare with theirs.
    """
    found = RIVALS[kind](grounds)
    contenders = (one if isinstance(one, Contender) else Contender.of(one, kind) for one in found)
    weighed = list(map(grounds.weighed, contenders))
    weighed = [one for one in weighed if one.is_judged] or weighed
    placed = [(one, one.candidate) for one in weighed if one.candidate is not None]
    if len(placed) <= MOST_CANDIDATES:
        return weighed

    def cost(pair: tuple[Contender, Candidate]) -> tuple[bool, float]:
        too_large, seconds = grounds.seconds(pair[1])
        return too_large, seconds * (pair[0].samples or 1.0)

    return [one for one, _ in sorted(placed, key=cost)[:MOST_CANDIDATES]]


def measure(session: ClusterSession, one: Contender, minibatches: int) -> Outcome:
    """Measure a contender: on the workers, or plain PyTorch here."""
    if one.is_plain:
        return measure_plain(session, one, minibatches)
    try:
        if one.candidate is None and one.way != "plain":
            if one.seconds:
                minibatches = min(minibatches, max(int(_LONGEST_SECONDS / min(one.seconds)), 2))
            return session.measure_parallel(
                one.way, one.processes, minibatches, one.method, one.every
            )
        assert one.candidate is not None
        return session.measure(one.candidate, minibatches)
    except InvalidInput as error:
        # Such as a minibatch that cannot be divided into GPipe's microbatches.
        return FailedMeasurement(failure="cannot run", reason=str(error))


def best_measured(
    kind: str,
    grounds: Grounds,
    minibatches: int = _HEAT_MINIBATCHES,
    tell: Callable[[str], None] = lambda what: None,
) -> Contender | None:
    """Return the :func:`best_of` a kind in :data:`RIVALS`."""
    return best_of(candidates_of(kind, grounds), grounds, kind, minibatches, tell)


def best_of(
    found: list[Contender],
    grounds: Grounds,
    kind: str,
    minibatches: int = _HEAT_MINIBATCHES,
    tell: Callable[[str], None] = lambda what: None,
) -> Contender | None:
    """Return the best of some candidates, with its measurements; None if there are none.

    Several are measured in turns (:func:`drlpp.racing.race.heat`). If all fail it is the first.

    Args:
        found: candidates.
        grounds: what is known of model and workers.
        kind: what they are.
        minibatches: of a measurement.
        tell: called before each with what it is.
    """
    found = [*found]

    def run(number: int) -> float | None:
        one = found[number]
        tell(f"choosing the best {kind} of {len(found)}: {one.beside(grounds.method)}")
        outcome = measure(grounds.session, one, minibatches)
        found[number] = one.with_outcome(outcome)
        return cost_of(outcome, one.handicap * (one.samples or 1.0))

    return found[heat(len(found), run) or 0] if found else None


def rivals(grounds: Grounds, minibatches: int, tell: Callable[[str], None]) -> list[Contender]:
    """Return the best of each kind that is possible; a heat measures a third as long as a race."""
    short = max(minibatches // 3, 1)
    found = (best_measured(kind, grounds, short, tell) for kind in RIVALS)
    return [one for one in found if one is not None]


def is_rival(name: str) -> bool:
    """Return whether a user has without an agent what has this name."""
    return name in RIVALS or name.startswith(YOURS)


def without_equals(contenders: Iterable[Contender], cluster: Cluster) -> list[Contender]:
    """Return each once, by the names of all that found it, agents first; the first of equals stays.

    Accelerators of one host that do not differ are interchangeable: contenders that differ by their
    numbers alone are equal.
    """
    found: dict[Hashable, list[Contender]] = {}
    kinds = _kinds(cluster)
    for one in contenders:
        alike = one
        if one.placement is not None:
            alike = one.model_copy(update={"placement": _renumbered(one.placement, kinds)})
        found.setdefault(alike.key, []).append(one)
    return [_named_together(alike) for alike in found.values()]


def _named_together(alike: Sequence[Contender]) -> Contender:
    agents_first = sorted(alike, key=lambda one: any(map(is_rival, one.names)))
    names = dict.fromkeys(name for one in agents_first for name in one.names)
    return alike[0].model_copy(update={"found_by": ", ".join(names)})


def _kinds(cluster: Cluster) -> list[str]:
    """Return the same for accelerators of one host, or alone on theirs, that do not differ."""
    alone = len(set(cluster.host_of)) == cluster.accelerators
    lines = cluster.part(range(cluster.accelerators)).hosts
    return [
        f"{'' if alone else host} {line.model_copy(update={'name': 'any'})!r}"
        for host, line in zip(cluster.host_of, lines, strict=True)
    ]


def _renumbered(placement: Placement, kinds: Sequence[str]) -> Placement:
    """Return the same for all placements that differ by accelerators of one kind alone.

    These are numbered in the order in which stages name them.
    """
    free = {kind: [n for n, other in enumerate(kinds) if other == kind] for kind in kinds}
    numbers = {}
    for accelerator in dict.fromkeys(a for s in placement.stages for a in s.accelerators):
        numbers[accelerator] = free[kinds[accelerator]].pop(0)
    return placement.canonical.on([numbers.get(a, a) for a in range(len(kinds))])


def divisors(batch_size: int) -> list[int]:
    """Return the numbers of microbatches that divide a minibatch evenly, ascending."""
    return [number for number in range(1, batch_size + 1) if batch_size % number == 0]
