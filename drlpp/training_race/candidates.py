"""Who takes part in a race to a loss if a user names nobody: what one has, and could have.

Plain PyTorch with the threads that suit it best; data parallelism as torch's, which divides each
minibatch among the workers; and pipelines of two stages and of as many as there are workers, split
evenly by the profile, each with PipeOptim over microbatches without a flush, as many as stages and
twice as many, with the paper's over whole minibatches, and with schedules that flush; and the exact
planner's placement over microbatches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from drlpp.comparison.contenders import PLAIN, Contender
from drlpp.comparison.microbatches import as_many_as, twice_as_many
from drlpp.comparison.plain import PlainPyTorch
from drlpp.comparison.race import heat
from drlpp.comparison.rivals import plain_threads
from drlpp.costs.profile import Profile
from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement, Stage
from drlpp.planners import PLANNERS, PlanningProblem, even_split
from drlpp.runtime.session.session import ClusterSession
from drlpp.schedule.kinds.flushed_1f1b import FLUSHED_1F1B
from drlpp.schedule.kinds.gpipe import GPIPE
from drlpp.schedule.kinds.registry import SCHEDULE_KINDS
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.schedule.weight_policies import PIPEOPTIM, SYNC
from drlpp.simulator import simulate
from drlpp.specs.cluster import Cluster

_MINIBATCHES = 10
_SIMULATED_MINIBATCHES = 12


def plain_pytorch(session: ClusterSession, cluster: Cluster) -> Contender:
    """Return plain PyTorch with the threads with which a minibatch takes least, measured in turns.

    If it cannot train the model at all, the race will say so.
    """
    choices = plain_threads(session, cluster)
    with PlainPyTorch(session) as plain:
        best = heat(len(choices), lambda i: plain.measure(choices[i], _MINIBATCHES, session.method))
    return Contender(found_by=PLAIN, method=session.method, threads=choices[best or 0])


def usual_candidates(
    session: ClusterSession, profile: Profile, cluster: Cluster
) -> list[Contender]:
    """Return plain PyTorch, data parallelism and pipelines; none twice.

    Args:
        session: its method is what PipeOptim's is made of.
        profile, cluster: what planners plan with.
    """
    found = [plain_pytorch(session, cluster), *_data_parallel(session, cluster)]
    for contender in _pipelines(session, profile, cluster):
        if contender.key not in {other.key for other in found}:
            found.append(contender)
    return found


def _data_parallel(session: ClusterSession, cluster: Cluster) -> Iterator[Contender]:
    """Yield data parallelism over as many workers as are fastest, measured in turns.

    As with torch's DDP, workers divide each minibatch among them; so they have to divide it evenly.
    """
    operators = tuple(range(len(session.graph)))
    found = []
    for workers in range(2, cluster.accelerators + 1):
        if session.captured.task.batch_size % workers == 0:
            options = {"schedule": FLUSHED_1F1B.name, "microbatches": workers}
            method = choose_method(SYNC.name, options, session.method)
            chosen = tuple(sorted(cluster.least_crowded[:workers]))
            whole = Stage(operators=operators, accelerators=chosen)
            found.append(Candidate(Placement(stages=(whole,)), method))
    best = heat(len(found), lambda index: session.measure(found[index], _MINIBATCHES))
    if best is not None:
        yield Contender.of(found[best], "data-parallel")


def _pipelines(session: ClusterSession, profile: Profile, cluster: Cluster) -> Iterator[Contender]:
    for stages in sorted({2, cluster.accelerators}):
        if not 2 <= stages <= min(cluster.accelerators, len(session.graph)):
            continue
        for method in _methods(session, stages):
            problem = _problem(session, profile, cluster, method)
            try:
                placement = even_split(problem, stages)
            except InvalidInput:
                continue  # Such as two stages on each accelerator, for fewer than four operators.
            if method.flushes:
                method = _best_flushed(session, profile, cluster, placement, method.schedule)
            yield Contender.of(Candidate(placement, method), "even split")
    method, *_ = _microbatched(session, cluster.accelerators)
    with suppress(InvalidInput):
        placement = PLANNERS["exact"](_problem(session, profile, cluster, method)).placement
        yield Contender.of(Candidate(placement, method), "exact")


def _methods(session: ClusterSession, stages: int) -> Iterable[Method]:
    """Return asynchronous 1F1B over microbatches and over minibatches, and what flushes."""
    yield from _microbatched(session, stages)
    yield _asynchronous(session, 1)
    for kind in SCHEDULE_KINDS.values():
        # GPipe waits as long as flushed 1F1B and holds more.
        if kind.trains and kind.flushes and kind is not GPIPE:
            yield choose_method(SYNC.name, {"schedule": kind.name}, session.method)


def _asynchronous(session: ClusterSession, microbatches: int) -> Method:
    policy = None if not session.method.policy_facts.synchronous else PIPEOPTIM.name
    return choose_method(policy, {"microbatches": microbatches}, session.method)


def _microbatched(session: ClusterSession, stages: int) -> list[Method]:
    """Return the user's microbatches, or as many as stages, and twice as many."""
    given, batch_size = session.method.microbatches, session.captured.task.batch_size
    if given > 1:
        return [_asynchronous(session, given)]
    numbers = as_many_as(stages, batch_size), twice_as_many(stages, batch_size)
    return [_asynchronous(session, number) for number in numbers if number is not None]


def _best_flushed(
    session: ClusterSession,
    profile: Profile,
    cluster: Cluster,
    placement: Placement,
    schedule: str,
) -> Method:
    """Return a schedule that flushes with the microbatches that are fastest in the simulator."""
    batch = session.captured.task.batch_size

    def method(microbatches: int) -> Method:
        options = {"schedule": schedule, "microbatches": microbatches}
        return choose_method(SYNC.name, options, session.method)

    def seconds(microbatches: int) -> float:
        problem = _problem(session, profile, cluster, method(microbatches))
        return simulate(
            problem.workload,
            cluster,
            placement,
            method(microbatches),
            _SIMULATED_MINIBATCHES,
            problem.memory,
        ).seconds_per_minibatch

    return method(min((m for m in range(1, batch + 1) if batch % m == 0), key=seconds))


def _problem(
    session: ClusterSession, profile: Profile, cluster: Cluster, method: Method
) -> PlanningProblem:
    return PlanningProblem.profiled(profile, cluster, method, session.optimizer)
