"""Which weights a microbatch meets on a worker, and the rates of updates, counted in the schedule.

A stage's weights are numbered by its updates; those a run starts with are number 0. A run is an
epoch, or what is between two checkpoints of it. It begins and ends with an empty pipeline, so all
counts begin anew in each.

In steady state on a straight pipeline of D stages they are those of the papers: s = D − rank − 1
(pipeoptim eq. 4), w^(t−n+1) at every stage with vertical sync (pipedream §3.3), a delay of one for
PipeDream-2BW, ⌊rank/2⌋ + D − rank − 1 and ⌊rank/2⌋ for SpecTrain. Counting gives them as well for
replicated stages, branches, accumulated gradients, and while the pipeline fills; with N parts in
flight for each link beyond NOAM, where s is (1 + N)(D − rank − 1); and with minibatches of M
microbatches, of which number j = 0, 1, … then meets s = ⌈(D − rank − 1 − j) / M⌉, at least 0. That
is (D − rank − 1) / M in the mean, and never more than one with as many microbatches as stages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

from drlpp.errors import InvalidInput
from drlpp.schedule.actions import (
    Backward,
    BackwardWeight,
    Forward,
    MicrobatchId,
    TiedUpdate,
    Update,
)
from drlpp.schedule.kinds.registry import SCHEDULE_KINDS
from drlpp.schedule.method import Method
from drlpp.schedule.per_stage import of_stages
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import Schedule
from drlpp.schedule.ties import Tie, is_update
from drlpp.schedule.weight_policies import Lookahead, PartCounts, WeightUse


def weight_versions(
    schedule: Schedule, worker: int, tie: Tie | None = None
) -> dict[MicrobatchId, PartCounts]:
    """Count, in the actions of ``worker``, the newest weights when each of its parts passes.

    Of the weights that only its stage holds, or of its copy of those of ``tie``.
    """
    forward: dict[MicrobatchId, int] = {}
    found: dict[MicrobatchId, PartCounts] = {}
    version = 0
    for action in schedule.actions[worker]:
        match action:
            case Forward():
                forward[action.part] = version
            case Backward() | BackwardWeight():
                found[action.part] = PartCounts(forward[action.part], version)
            case Update() | TiedUpdate() if is_update(action, tie):
                version = action.version
    return found


def stage_delay(schedule: Schedule, stage: int, tie: Tie | None = None) -> int:
    """Return the largest s of a stage: that of the steady state if the schedule reaches it.

    That of the weights that only this stage holds, or of its copy of those of ``tie``.
    """
    return max(
        (
            versions.difference
            for worker in schedule.pipeline.stages[stage]
            for versions in weight_versions(schedule, worker, tie).values()
        ),
        default=0,
    )


def steady_delays(pipeline: Pipeline, method: Method) -> list[int]:
    """Return the largest s of every stage in the steady state of a schedule.

    The schedule need not be written for it.

    The updates in between are at most the parts in between, divided by the parts of an update and
    rounded up; in the mean over the parts of an update they are just that, not rounded.
    """
    if method.flushes:
        return [0] * len(pipeline.stages)
    return [
        -(-apart // method.parts_of_update(len(workers)))
        for apart, workers in zip(method.parts_in_between(pipeline), pipeline.stages, strict=True)
    ]


def tied_delay(pipeline: Pipeline, tie: Tie, method: Method) -> int:
    """Return s of tied weights in steady state, at the root: a copy is as late as that."""
    if method.flushes:
        return 0
    return -(-method.parts_in_between(pipeline)[tie.root] // (tie.together * method.microbatches))


def stage_delays(pipeline: Pipeline, method: Method) -> list[int]:
    """Return s of every stage in steady state.

    Raises:
        InvalidInput: if the method cannot run on such a pipeline.
    """
    method.schedule_kind.check_stages_held(pipeline)
    of_stages(method.recompute, len(pipeline.stages))
    _check_accumulation(pipeline, method)
    delays = steady_delays(pipeline, method)
    if method.policy_facts.synchronous and any(delays):
        kinds = SCHEDULE_KINDS.values()
        flushing = [kind.name for kind in kinds if kind.flushes and kind.stages_held == 1]
        configuration = "-".join(str(len(workers)) for workers in pipeline.stages)
        raise InvalidInput(
            f"policy {method.policy} cannot run a {configuration} placement on a {method.schedule} "
            "schedule, where weights change between forward and backward; use schedule "
            f"{' or '.join(flushing)}, or another policy"
        )
    return delays


def weight_uses(
    schedule: Schedule, method: Method, tie: Tie | None = None
) -> dict[int, dict[MicrobatchId, WeightUse]]:
    """Return what the policy of ``method`` uses for every part on every worker.

    Args:
        schedule: of the run.
        method: its policy.
        tie: whose weights; None for those that only one stage holds.
    """
    pipeline = schedule.pipeline
    versions = {worker: weight_versions(schedule, worker) for worker in schedule.actions}
    entered = _contained_when_entering(schedule, versions)
    version_of, lookahead = method.policy_facts.version, method.lookahead or Lookahead()
    if tie is not None:
        holders = sorted({worker for stage in tie.stages for worker in pipeline.stages[stage]})
        versions = {worker: weight_versions(schedule, worker, tie) for worker in holders}
    uses: dict[int, dict[MicrobatchId, WeightUse]] = {}
    for worker, met in versions.items():
        stage = pipeline.stage_of(worker) if tie is None else tie.root
        contained = _contained(schedule, worker, tie)
        until_input = _updates_until_input(schedule, stage, contained)
        uses[worker] = {}
        for part, newest in met.items():
            # The newest version without the part is that before the update of its gradient.
            without = _newest_within(contained, part[0])
            before = newest.newest_in_backward if tie is None else without
            counts = PartCounts(
                newest.newest_in_forward,
                newest.newest_in_backward,
                at_input=_newest_within(contained, entered[part]),
                started_from=without,
                until_input=until_input,
                still_to_come=before - newest.newest_in_backward,
            )
            uses[worker][part] = WeightUse(
                counts.newest_in_forward,
                counts.newest_in_backward,
                stashed=version_of(counts),
                forward_lead=lookahead.forward(counts),
                backward_lead=lookahead.backward(counts),
            )
    return uses


def _contained(schedule: Schedule, worker: int, tie: Tie | None = None) -> list[int]:
    """Return for every version of the worker's weights how many minibatches it contains."""
    return [0, *(update.through for update in _updates(schedule, worker, tie))]


def _updates(schedule: Schedule, worker: int, tie: Tie | None) -> Iterator[Update | TiedUpdate]:
    for action in schedule.actions[worker]:
        if is_update(action, tie):
            yield action


def _contained_when_entering(
    schedule: Schedule, versions: Mapping[int, Mapping[MicrobatchId, PartCounts]]
) -> dict[MicrobatchId, int]:
    """Return for every part how many minibatches the input stage's weights contain at its entry.

    Where the stage graph has several input stages, the one with the oldest weights counts, as
    later stages have certainly seen those.
    """
    pipeline = schedule.pipeline
    entered: dict[MicrobatchId, int] = {}
    for stage, workers in enumerate(pipeline.stages):
        if pipeline.incoming(stage):
            continue
        for worker in workers:
            contained = _contained(schedule, worker)
            for part, met in versions[worker].items():
                minibatches = contained[met.newest_in_forward]
                entered[part] = min(minibatches, entered.get(part, minibatches))
    return entered


def _newest_within(contained: list[int], minibatches: int) -> int:
    """Return the newest version that contains no more than the first ``minibatches``."""
    return bisect_right(contained, minibatches) - 1


def _check_accumulation(pipeline: Pipeline, method: Method) -> None:
    """Check that an update takes all parts in flight, as PipeDream-2BW's m ≥ D demands."""
    if not method.policy_facts.updates_all_in_flight:
        return
    needed = max(
        flight * len(workers)
        for flight, workers in zip(method.in_flight(pipeline), pipeline.stages, strict=True)
    )
    if method.accumulate * method.microbatches < needed:
        parts, divided = "minibatches", ""
        if method.microbatches > 1:
            parts, divided = "microbatches", f", of minibatches of {method.microbatches}"
        raise InvalidInput(
            f"policy {method.policy} keeps two versions of the weights, so an update needs the "
            f"gradients of at least as many {parts} as are in flight, {needed} with this "
            f"placement; accumulate is {method.accumulate}{divided}"
        )


def _updates_until_input(schedule: Schedule, stage: int, contained: list[int]) -> int:
    """Return the updates of a stage from its backward to the input stage's: ⌊rank/2⌋.

    Both are backwards of the same part.

    The backward passes the stages before this one, one pass of time each, and in steady state a
    stage alternates a forward and a backward. A stage with m replicas, microbatches or accumulated
    gradients makes one update for several parts.
    """
    together = contained[1] * schedule.microbatches if len(contained) > 1 else 1
    return schedule.pipeline.rank(stage) // (2 * together)


def update_rates(
    schedule: Schedule,
    worker: int,
    method: Method,
    rates: Sequence[float],
    *,
    asynchronous_before: int = 0,
    tie: Tie | None = None,
) -> list[float]:
    """Return the learning rate of every update that ``worker`` makes in a run, in order.

    An update of several minibatches takes the rate of the last. T1 (pipemare eq. 4) divides the
    rate of stage i in step k by τ_i^(1 − min(k/K, 1)): while the model is young, by the stage's
    delay. Steps are counted in minibatches, so that stages with and without replicas anneal over
    the same data.

    Args:
        schedule: of the run.
        worker: whose updates.
        method: says whether there is T1, and its K.
        rates: the base learning rate for every minibatch of the run; what comes after the last
            has its rate.
        asynchronous_before: minibatches that were trained asynchronously before this run, k of
            its first.
        tie: whose weights are updated; None for those that only one stage holds.
    """
    anneals = method.annealing_minibatches > 0 and not schedule.flushes
    if anneals:
        pipeline = schedule.pipeline
        if tie is None:
            delay = 1 + steady_delays(pipeline, method)[pipeline.stage_of(worker)]
        else:
            delay = 1 + tied_delay(pipeline, tie, method)
    found: list[float] = []
    first = 0
    for update in _updates(schedule, worker, tie):
        rate = rates[min(update.through, len(rates)) - 1]
        if anneals:
            step = asynchronous_before + first
            rate /= delay ** (1 - min(step / method.annealing_minibatches, 1.0))
        found.append(rate)
        first = update.through
    return found
