"""The usual candidates of a race to a loss: what a user has today, and could have.

Plain PyTorch with the threads that suit it best; data parallelism as torch's, which divides each
minibatch among the workers; and pipelines of two stages and of as many as there are workers, split
evenly by the profile, each with PipeOptim over microbatches without a flush, as many as stages and
twice as many, with the paper's over whole minibatches, and with schedules that flush; and the exact
planner's placement over microbatches. Of weight policies that a user names there are the same
pipelines as of PipeOptim. With another optimizer every candidate is raced once more.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

from drlpp.comparison.contenders import DATA_PARALLEL, PLAIN, Contender, Someone, named_together
from drlpp.comparison.microbatches import as_many_as, twice_as_many
from drlpp.comparison.plain import PlainPyTorch
from drlpp.comparison.race import heat
from drlpp.comparison.rivals import data_parallel_on, plain_threads
from drlpp.costs.profile import Profile
from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement, Stage
from drlpp.planners import PLANNERS, PlanningProblem, even_split
from drlpp.runtime.session.session import ClusterSession
from drlpp.schedule.kinds.gpipe import GPIPE
from drlpp.schedule.kinds.registry import SCHEDULE_KINDS
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.schedule.weight_policies import PIPEOPTIM, SYNC
from drlpp.simulator import simulate
from drlpp.specs.cluster import Cluster
from drlpp.specs.optimizer_spec import OptimizerSpec
from drlpp.training_race.training_race_file import Racer

_EVEN_SPLIT = "even split"
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
    """Return plain PyTorch, and :func:`usual_placements`."""
    return [plain_pytorch(session, cluster), *usual_placements(session, profile, cluster)]


def usual_placements(
    session: ClusterSession, profile: Profile, cluster: Cluster
) -> list[Contender]:
    """Return data parallelism and pipelines; none twice.

    Args:
        session: its method is what PipeOptim's is made of.
        profile, cluster: what planners plan with.
    """
    policy = PIPEOPTIM.name if session.method.policy_facts.synchronous else None
    method = choose_method(policy, None, session.method)
    return without_equals(
        [
            *_data_parallel(session, cluster),
            *_asynchronous(session, profile, cluster, method),
            *_flushed(session, profile, cluster),
        ]
    )


def with_policy(
    session: ClusterSession, profile: Profile, cluster: Cluster, method: Method
) -> list[Contender]:
    """Return the pipelines that PipeOptim has, with another policy, as far as they can be run.

    Some need as many microbatches in an update as are in flight.

    Raises:
        InvalidInput: none of them can.
    """
    found, refusal = [], "there is no pipeline for these workers"
    for contender in _asynchronous(session, profile, cluster, method):
        assert contender.candidate is not None
        try:
            session.plan(contender.candidate)
        except InvalidInput as error:
            refusal = str(error)
        else:
            found.append(contender)
    if not found:
        raise InvalidInput(f"policy {method.policy} cannot take part in this race: {refusal}")
    return found


def with_optimizers(
    contenders: Iterable[Contender], optimizers: Iterable[OptimizerSpec]
) -> list[Racer]:
    """Return every candidate, and once more with each of the optimizers; none twice.

    So plain PyTorch has whatever a pipeline has.
    """
    racers = [Racer.made_of(contender) for contender in contenders]
    for optimizer in optimizers:
        own = optimizer.with_rate(float(optimizer.value("lr")))
        racers += [
            racer.model_copy(update={"optimizer": own})
            for racer in racers
            if racer.optimizer is None
        ]
    return without_equals(racers)


def without_equals(contenders: Iterable[Someone]) -> list[Someone]:
    """Return each once, by the names of all that found it."""
    found: dict[Hashable, list[Someone]] = {}
    for contender in contenders:
        found.setdefault(contender.key, []).append(contender)
    return list(map(named_together, found.values()))


def _data_parallel(session: ClusterSession, cluster: Cluster) -> Iterator[Contender]:
    """Yield data parallelism over as many workers as are fastest, measured in turns.

    As with torch's DDP, workers divide each minibatch among them; so they have to divide it evenly.
    """
    operators = tuple(range(len(session.graph)))
    found = []
    for workers in range(2, cluster.accelerators + 1):
        if session.captured.task.batch_size % workers == 0:
            method = data_parallel_on(workers, session.method)
            chosen = tuple(range(workers))
            whole = Stage(operators=operators, accelerators=chosen)
            found.append(Candidate(Placement(stages=(whole,)), method))
    best = heat(len(found), lambda index: session.measure(found[index], _MINIBATCHES))
    if best is not None:
        yield Contender.of(found[best], DATA_PARALLEL)


def _asynchronous(
    session: ClusterSession, profile: Profile, cluster: Cluster, method: Method
) -> Iterator[Contender]:
    """Yield a policy's pipelines over microbatches, and over whole minibatches."""
    for stages in _sizes(session, cluster):
        for divided in (*_microbatched(session, method, stages), _divided(method, 1)):
            problem = _problem(session, profile, cluster, divided)
            yield Contender.of(Candidate(even_split(problem, stages), divided), _EVEN_SPLIT)
    divided, *_ = _microbatched(session, method, cluster.accelerators)
    try:
        placement = PLANNERS["exact"](_problem(session, profile, cluster, divided)).placement
    except InvalidInput:
        return  # Such as where no placement fits into memory.
    yield Contender.of(Candidate(placement, divided), "exact")


def _flushed(session: ClusterSession, profile: Profile, cluster: Cluster) -> Iterator[Contender]:
    for stages in _sizes(session, cluster):
        for kind in SCHEDULE_KINDS.values():
            # GPipe waits as long as flushed 1F1B and holds more.
            if not kind.trains or not kind.flushes or kind is GPIPE:
                continue
            method = choose_method(SYNC.name, {"schedule": kind.name}, session.method)
            try:
                placement = even_split(_problem(session, profile, cluster, method), stages)
            except InvalidInput:
                continue  # Such as two stages on each accelerator, for fewer than four operators.
            best = _best_flushed(session, profile, cluster, placement, kind.name)
            yield Contender.of(Candidate(placement, best), _EVEN_SPLIT)


def _sizes(session: ClusterSession, cluster: Cluster) -> list[int]:
    """Return numbers of stages: two, and as many as workers."""
    most = min(cluster.accelerators, len(session.graph))
    return [stages for stages in sorted({2, cluster.accelerators}) if 2 <= stages <= most]


def _microbatched(session: ClusterSession, method: Method, stages: int) -> list[Method]:
    """Return the user's microbatches, or as many as stages, and twice as many."""
    given, batch_size = session.method.microbatches, session.captured.task.batch_size
    if given > 1:
        return [_divided(method, given)]
    numbers = as_many_as(stages, batch_size), twice_as_many(stages, batch_size)
    return [_divided(method, number) for number in numbers if number is not None]


def _divided(method: Method, microbatches: int) -> Method:
    return choose_method(None, {"microbatches": microbatches}, method)


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
