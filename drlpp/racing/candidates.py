"""What takes part in races, beside what an agent found or a user names.

By time per minibatch it is a heat for each kind of :data:`~drlpp.racing.rivals.RIVALS`. To a loss
it is plain PyTorch with the threads, and data parallelism with the workers, that suit them best;
and pipelines of two stages and of as many as there are workers, split evenly by the profile, each
with PipeOptim over microbatches without a flush, as many as stages and twice as many, with the
paper's over whole minibatches, and with schedules that flush; and the exact planner's placement
over microbatches. Of weight policies that a user names there are the same pipelines as of
PipeOptim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement
from drlpp.planners import PLANNERS, even_split
from drlpp.racing.contenders import Contender, Heat, without_equals
from drlpp.racing.microbatches import as_many_as, twice_as_many
from drlpp.racing.plain import measure_plain
from drlpp.racing.race import cost_of, heat
from drlpp.racing.rivals import DATA_PARALLEL, PLAIN, RIVALS, Grounds
from drlpp.schedule.kinds.alternating import GPIPE
from drlpp.schedule.kinds.registry import SCHEDULE_KINDS
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.schedule.weight_policies import PIPEOPTIM
from drlpp.specs.cluster import Cluster

_EVEN_SPLIT = "even split"
_MINIBATCHES = 10


def rival_heats(grounds: Grounds) -> list[Heat]:
    """Return a heat for each kind of rival that is possible on these workers."""
    heats = [_found(grounds, name) for name in RIVALS]
    return [Heat(candidates=tuple(found)) for found in heats if found]


def _found(grounds: Grounds, name: str) -> list[Contender]:
    """Return the candidates of a kind of rival."""
    found = RIVALS[name].candidates(grounds)
    return [Contender.of(one, name, grounds.method) for one in found]


def with_equal_numbers(
    heats: Sequence[Heat], known: Sequence[Contender], cluster: Cluster
) -> list[Heat]:
    """Return heats in which what equals a known contender on this cluster is placed as it is.

    Accelerators of one host that do not differ are interchangeable, so that placements that differ
    by their numbers alone are one candidate.
    """
    kinds = _interchangeable(cluster)
    placed = {
        _renumbered(one.placement, kinds): one.placement
        for one in reversed(known)
        if one.placement is not None
    }

    def alike(one: Contender) -> Contender:
        if one.placement is None:
            return one
        found = placed.get(_renumbered(one.placement, kinds), one.placement)
        return one.model_copy(update={"placement": found})

    return [
        heat.model_copy(update={"candidates": tuple(map(alike, heat.candidates))}) for heat in heats
    ]


def _interchangeable(cluster: Cluster) -> list[str]:
    """Return for every accelerator what is the same for those that it can be swapped with."""
    lines = cluster.part(range(cluster.accelerators)).hosts
    alone = len(set(cluster.host_of)) == cluster.accelerators
    return [
        f"{'' if alone else host} {line.model_copy(update={'name': 'any'})!r}"
        for host, line in zip(cluster.host_of, lines, strict=True)
    ]


def _renumbered(placement: Placement, kinds: Sequence[str]) -> Placement:
    """Return the same for all placements that differ by interchangeable accelerators alone.

    These are numbered in the order in which stages name them.
    """
    free = {kind: [n for n, other in enumerate(kinds) if other == kind] for kind in kinds}
    numbers = {}
    for accelerator in dict.fromkeys(a for s in placement.stages for a in s.accelerators):
        numbers[accelerator] = free[kinds[accelerator]].pop(0)
    return placement.canonical.on([numbers.get(a, a) for a in range(len(kinds))])


def usual_candidates(grounds: Grounds) -> list[Contender]:
    """Return what races to a loss by itself, plain PyTorch first; none twice.

    What PipeOptim runs with is made of the session's method.
    """
    policy = PIPEOPTIM.name if grounds.method.policy_facts.synchronous else None
    method = choose_method(policy, None, grounds.method)
    data_parallel = _best(grounds, DATA_PARALLEL)
    return without_equals(
        [
            # If it cannot train the model at all, the race will say so.
            _best(grounds, PLAIN) or _found(grounds, PLAIN)[0],
            *([] if data_parallel is None else [data_parallel]),
            *_asynchronous(grounds, method),
            *_flushed(grounds),
        ]
    )


def with_policy(grounds: Grounds, method: Method) -> list[Contender]:
    """Return the pipelines that PipeOptim has, with another policy, as far as they can be run.

    Some need as many microbatches in an update as are in flight.

    Raises:
        InvalidInput: none of them can.
    """
    found, refusal = [], "there is no pipeline for these workers"
    for contender in _asynchronous(grounds, method):
        assert contender.candidate is not None
        try:
            grounds.session.plan(contender.candidate)
        except InvalidInput as error:
            refusal = str(error)
        else:
            found.append(contender)
    if not found:
        raise InvalidInput(f"policy {method.policy} cannot take part in this race: {refusal}")
    return found


def _best(grounds: Grounds, name: str) -> Contender | None:
    """Return the fastest of a kind, measured in turns; None if none can be run."""
    found = _found(grounds, name)

    def measure(index: int) -> float | None:
        candidate, session = found[index].candidate, grounds.session
        if candidate is None:
            return cost_of(measure_plain(session, found[index].threads, _MINIBATCHES))
        return cost_of(session.measure(candidate, _MINIBATCHES))

    best = heat(len(found), measure)
    return None if best is None else found[best]


def _asynchronous(grounds: Grounds, method: Method) -> Iterator[Contender]:
    """Yield a policy's pipelines over microbatches, and over whole minibatches."""
    for stages in _sizes(grounds):
        for divided in (*_microbatched(grounds, method, stages), _divided(method, 1)):
            placement = even_split(grounds.problem(divided), stages)
            yield Contender.of(Candidate(placement, divided), _EVEN_SPLIT)
    divided, *_ = _microbatched(grounds, method, grounds.cluster.accelerators)
    try:
        placement = PLANNERS["exact"](grounds.problem(divided)).placement
    except InvalidInput:
        return  # Such as where no placement fits into memory.
    yield Contender.of(Candidate(placement, divided), "exact")


def _flushed(grounds: Grounds) -> Iterator[Contender]:
    """Yield pipelines that flush, with the microbatches that are fastest in the simulator."""
    batch_size = grounds.batch_size
    for stages in _sizes(grounds):
        for kind in SCHEDULE_KINDS.values():
            # GPipe waits as long as flushed 1F1B and holds more.
            if not kind.trains or not kind.flushes or kind is GPIPE:
                continue
            given = grounds.synchronous(kind.name, grounds.method.microbatches)
            try:
                placement = even_split(grounds.problem(given), stages)
            except InvalidInput:
                continue  # Such as two stages on each accelerator, for fewer than four operators.
            methods = [
                grounds.synchronous(kind.name, microbatches)
                for microbatches in range(1, batch_size + 1)
                if batch_size % microbatches == 0
            ]
            found = [Candidate(placement, method) for method in methods]
            yield Contender.of(min(found, key=lambda c: grounds.seconds(c)[1]), _EVEN_SPLIT)


def _sizes(grounds: Grounds) -> list[int]:
    """Return numbers of stages: two, and as many as workers."""
    most = min(grounds.cluster.accelerators, len(grounds.session.graph))
    return [stages for stages in sorted({2, grounds.cluster.accelerators}) if 2 <= stages <= most]


def _microbatched(grounds: Grounds, method: Method, stages: int) -> list[Method]:
    """Return the user's microbatches, or as many as stages, and twice as many."""
    given, batch_size = grounds.method.microbatches, grounds.batch_size
    if given > 1:
        return [_divided(method, given)]
    numbers = as_many_as(stages, batch_size), twice_as_many(stages, batch_size)
    return [_divided(method, number) for number in numbers if number is not None]


def _divided(method: Method, microbatches: int) -> Method:
    return choose_method(None, {"microbatches": microbatches}, method)
