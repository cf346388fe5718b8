"""What the simulator and the lateness of gradients promise of a training, before it begins.

Training to a loss takes minutes, predicting it nothing: seconds per minibatch as simulated, times
the samples that late gradients cost. What is far behind by that product does not race.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from drlpp.errors import InvalidInput
from drlpp.racing.contenders import Contender
from drlpp.racing.rivals import (
    DATA_PARALLEL,
    DILOCO,
    PARALLEL,
    PLAIN,
    Grounds,
    best_measured,
    best_of,
    by_torch,
    candidates_of,
    divisors,
    measure,
    predicted,
    without_equals,
)
from drlpp.runtime.ipc.protocol import ParallelWay
from drlpp.runtime.session.session import ClusterSession
from drlpp.schedule.analysis.staleness import mean_staleness, samples_factor
from drlpp.schedule.kinds.alternating import GPIPE
from drlpp.schedule.kinds.registry import SCHEDULE_KINDS
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.schedule.weight_policies import PIPEOPTIM

MOST = 6
"""How many train, unless a user names more."""

APPROXIMATE: tuple[ParallelWay, ...] = ("powersgd", "local-sgd", DILOCO)
"""Ways whose updates are not those of plain PyTorch."""

_FEW_MINIBATCHES = 3

_BEHIND = 1.5
"""What is expected to take this many times as long as the best does not start."""


def expected_seconds(grounds: Grounds, one: Contender) -> float:
    """Return seconds for as much progress as a minibatch of plain PyTorch makes, roughly.

    Infinite is what cannot be run, or does not fit in memory.
    """
    if one.candidate is None:
        found = predicted(grounds, one.way, one.processes, one.passes)
        return found.seconds_to_loss if found.fits else math.inf
    try:
        plan = grounds.session.plan(one.candidate)
    except InvalidInput:
        return math.inf
    too_large, seconds = grounds.seconds(one.candidate)
    return (
        math.inf
        if too_large
        else seconds * samples_factor(plan.pipeline, plan.method, grounds.session.optimizer)
    )


def usual_candidates(grounds: Grounds) -> list[Contender]:
    """Return what races to a loss by itself, plain PyTorch first; none twice.

    Where plain PyTorch cannot train the model, torch's fastest data parallelism with the same
    updates takes its place, if there is one. It has the threads, and data parallelism, ours or
    torch's, the workers, at which a minibatch is fastest. The others are PowerSGD, local SGD and
    DiLoCo; :func:`pipelines` that flush; and those of PipeOptim, made of the session's method.
    """
    policy = PIPEOPTIM.name if grounds.method.policy_facts.synchronous else None
    kinds = [kind for kind in SCHEDULE_KINDS.values() if kind.trains and kind.flushes]
    # GPipe waits as long as flushed 1F1B and holds more.
    kinds.remove(GPIPE)
    methods = [choose_method(policy, None, grounds.method)]
    methods += [grounds.synchronous(kind.name, 1) for kind in kinds]
    found = [one for method in methods for one in pipelines(grounds, method)]
    workers = grounds.cluster.accelerators
    divides = workers > 1 and grounds.batch_size % workers == 0
    if divides and not grounds.method.skips_updates:
        found[:0] = [by_torch(grounds, way, workers) for way in APPROXIMATE]
    plain = _tried(grounds, best_measured(PLAIN, grounds))
    assert plain is not None
    sharing = PARALLEL if plain.failure else (DATA_PARALLEL, *PARALLEL)
    if (data_parallel := _data_parallel(grounds, sharing)) is not None:
        found.insert(0, data_parallel)
    if data_parallel is None or not plain.failure:
        # If nothing of torch's can train the model, the race will say so.
        found.insert(0, plain.unmeasured)
    return without_equals(found, grounds.cluster)


def _data_parallel(grounds: Grounds, kinds: Iterable[str]) -> Contender | None:
    """Return the fastest data parallelism with the updates of plain PyTorch: all train alike.

    What is expected to be far behind others is not measured.
    """
    known = (kind for kind in kinds if kind not in APPROXIMATE)
    found = [one for kind in known for one in candidates_of(kind, grounds)]
    expected = [expected_seconds(grounds, one) for one in found]
    limit = _BEHIND * min(expected, default=math.inf)
    near = [
        one for one, seconds in zip(found, expected, strict=True) if seconds <= limit < math.inf
    ]
    best = _tried(grounds, best_of(near, grounds, "data parallelism"))
    return None if best is None or best.failure else best.unmeasured


def _tried(grounds: Grounds, one: Contender | None) -> Contender | None:
    """Return what has been measured: the only one of its kind has not, and memory may be short."""
    if one is None or one.outcomes:
        return one
    return one.with_outcome(measure(grounds.session, one, _FEW_MINIBATCHES))


def pipelines(grounds: Grounds, method: Method) -> list[Contender]:
    """Return pipelines with a method, each with the microbatches that promise the loss first.

    Even splits over two workers and over all, and PipeDream's placement for the latter's
    microbatches, as far as they can be run: some policies need as many microbatches in an update as
    are in flight.
    """
    workers, found = grounds.cluster.accelerators, []
    methods: list[Method] = []
    for name, planner, stages in (
        ("even split", "gpipe", 2),
        ("even split", "gpipe", workers),
        ("pipedream", "pipedream", workers),
    ):
        if planner == "gpipe":
            if not 2 <= stages <= min(workers, len(grounds.session.graph)):
                continue
            methods = _microbatched(grounds, method, stages)
        candidates = [
            Contender.of(p, name) for m in methods for p in grounds.placed(planner, m, [stages])
        ]
        costs = {one: expected_seconds(grounds, one) for one in candidates}
        best = min(costs, key=costs.__getitem__, default=None)
        if best is not None and math.isfinite(costs[best]):
            found.append(best)
            methods = [best.method]
    return without_equals(found, grounds.cluster)


def _microbatched(grounds: Grounds, method: Method, stages: int) -> list[Method]:
    """Return a method with each number of microbatches that divides a minibatch.

    Without a flush it is the session's number, or up to twice the stages: more make gradients
    hardly less late.
    """
    given = 1 if method.flushes else grounds.method.microbatches
    most = grounds.batch_size if method.flushes else 2 * stages
    numbers = [given] if given > 1 else [n for n in divisors(grounds.batch_size) if n <= most]
    return [choose_method(None, {"microbatches": number}, method) for number in numbers]


def with_a_chance(
    grounds: Grounds, usual: Sequence[Contender], named: Iterable[Contender] = ()
) -> tuple[list[Contender], str | None]:
    """Return what trains of the usual candidates, and a line that names what does not.

    The first trains in any case. Of the others, those that are expected to be within 1.5 times of
    the best, and so many that with what is named there are six.

    Args:
        grounds: what is known of model and workers.
        usual: in the order of the race.
        named: what a user has asked for, which trains in any case.
    """
    named = list(named)
    expected = [expected_seconds(grounds, one) for one in usual]
    best = min([*expected, *(expected_seconds(grounds, one) for one in named)])
    kept = {0}
    room = max(MOST - len(named) - len(kept), 0)
    others = sorted(set(range(len(usual))) - kept, key=lambda i: (expected[i], i))
    limit = _BEHIND * best if math.isfinite(best) else 0.0
    kept |= {i for i in others[:room] if expected[i] <= limit}
    # These train anyway, by both names.
    kept |= {i for i, one in enumerate(usual) if one.key in {other.key for other in named}}
    left_out = [
        f"{usual[i].found_by} {usual[i].configuration} ({_schedule_of(usual[i])}"
        + (f"{expected[i] / best:.1f}×)" if math.isfinite(expected[i]) else "cannot be run)")
        for i in others
        if i not in kept
    ]
    line = None
    if left_out:
        line = f"expected to be late at the loss, so not trained: {', '.join(left_out)}"
    return [one for i, one in enumerate(usual) if i in kept], line


def _schedule_of(one: Contender) -> str:
    return f"{one.method.schedule}, " * (one.placement is not None)


def learning_rates_shared(session: ClusterSession, candidates: Sequence[Contender]) -> list[int]:
    """Return for each candidate the first one whose gradients are as late: it has the same rate.

    As late are those with the same weight policy and minibatches of an update, and the same number
    of updates in between, rounded up. All that are not late train alike, whatever their schedule.
    """
    first: dict[object, int] = {}
    found = []
    for number, one in enumerate(candidates):
        kind: tuple[object, ...] = 0, one.way * one.approximates, one.method.accumulate
        if one.candidate is not None:
            try:
                pipeline = session.plan(one.candidate).pipeline
            except InvalidInput:
                kind = (number,)
            else:
                late = math.ceil(mean_staleness(pipeline, one.method))
                updates = {one.method.minibatches_of_update(len(held)) for held in pipeline.stages}
                kind = late, one.method.policy if late else "", *sorted(updates)
        found.append(first.setdefault(kind, number))
    return found
