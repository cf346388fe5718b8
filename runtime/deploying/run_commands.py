"""From a plan to the commands of every worker: one for each segment between cuts."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile, takewhile

from torch import Tensor

from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.runtime.ipc.protocol import Run, RunPlan, Stream, WeightPlan
from drlpp.runtime.stage.weight_group import OWN
from drlpp.schedule.actions import (
    Action,
    AllReduce,
    MicrobatchId,
    Pass,
    Recompute,
)
from drlpp.schedule.analysis.weight_versions import update_rates
from drlpp.schedule.cut import Segment, cut_schedule
from drlpp.schedule.ties import Tie, is_update
from drlpp.schedule.weight_policies import WeightUse
from drlpp.specs.data import Samples


@dataclass(frozen=True)
class RunOptions:
    """How a schedule is run, in addition to what it says itself.

    Attributes:
        order: indices of the samples of every minibatch, (minibatches, batch size); None to
            repeat all samples.
        loaded: gives the minibatches one by one instead, from the first that is still to be run.
        rates: the learning rate of every minibatch, and as many behind the last as are known;
            None for the optimizer's own.
        first_minibatch: how many minibatches this training had before; dropout continues there.
        asynchronous_before: how many of them ran asynchronously.
        synchronous: flush before every update whatever the method (PipeMare's warm-up, W).
        finite: stop at a loss that is infinite or not a number. A measurement continues: it is
            about time, and the weights may run away when a minibatch is repeated.
    """

    order: Tensor | None = None
    loaded: Generator[Samples] | None = None
    rates: Sequence[float] | None = None
    first_minibatch: int = 0
    asynchronous_before: int = 0
    synchronous: bool = False
    finite: bool = False


def run_commands(
    plan: ExecutionPlan,
    minibatches: int,
    rate: float,
    options: RunOptions,
    cuts: Sequence[int] = (),
    start: int | None = None,
    stream: Stream | None = None,
) -> Iterator[dict[int, Run]]:
    """Yield the command of every worker for each segment of a training run.

    Args:
        plan: whose schedule is run.
        minibatches: of the whole run.
        rate: the optimizer's own learning rate.
        options: how it is run.
        cuts: between the segments (:func:`drlpp.schedule.cut.cut_schedule`).
        start: the cut that a checkpoint was taken at and the run continues from; what comes before
            is left out.
        stream: where minibatches come from, if not from samples in memory.

    Raises:
        InvalidInput: if the schedule does not suit the method.
    """
    schedule = plan.schedule(minibatches)
    uses = {tie: plan.weight_uses(minibatches, tie) for tie in (None, *plan.ties)}
    # Without a schedule of learning rates, and without T1, the list would be a number many times.
    known = options.rates or [rate]
    places = sorted({*cuts, *([start] if start else [])})
    segments = cut_schedule(schedule, places)
    if start:
        segments = segments[places.index(start) + 1 :]
    rates = {
        (worker, tie): update_rates(
            schedule,
            worker,
            plan.method,
            known,
            asynchronous_before=options.asynchronous_before,
            tie=tie,
        )
        for worker in schedule.actions
        for tie in (None, *plan.ties)
    }
    stages_of = schedule.pipeline.stages_by_worker
    recomputed = {
        (worker, chunk): frozenset(
            a.part for a in actions if isinstance(a, Recompute) and a.chunk == chunk
        )
        for worker, actions in schedule.actions.items()
        for chunk, _ in enumerate(stages_of[worker])
    }

    def weight_plan(part: Segment, worker: int, tie: Tie | None) -> WeightPlan:
        version = part.version if tie is None else part.tied_versions.get(tie.number, 0)
        return WeightPlan(
            uses=_uses_in(part, version, uses[tie][worker], tie),
            rates=rates[worker, tie],
            version=version,
            shared=_several_contribute(schedule.actions[worker], tie),
            root=tie.root if tie else None,
            others=tie.others if tie else (),
        )

    def run_plans(part: Segment, worker: int, *, last: bool) -> Iterator[RunPlan]:
        for chunk, stage in enumerate(stages_of[worker]):
            ties = (tie for tie in plan.ties if stage in tie.stages)
            yield RunPlan(
                weights={OWN: weight_plan(part, worker, None)}
                | {tie.number: weight_plan(part, worker, tie) for tie in ties},
                recomputed=recomputed[worker, chunk],
                kept=frozenset() if last else part.in_flight,
                finite=options.finite,
            )

    for number, segment in enumerate(segments):
        last = number == len(segments) - 1
        yield {
            worker: Run(
                actions=part.actions,
                plans=tuple(run_plans(part, worker, last=last)),
                order=options.order,
                first_minibatch=options.first_minibatch,
                microbatches=schedule.microbatches,
                posted=_posted(plan, worker),
                goes_on=number > 0 or bool(start),
                stream=stream,
            )
            for worker, part in segment.items()
        }


def _posted(plan: ExecutionPlan, worker: int) -> int:
    """Return how many receives a worker posts ahead, and how many of its own sends it outruns.

    It is as far ahead of a stage that it shares weights with, or behind, as either has in flight.
    """
    held = plan.pipeline.stages_of(worker)
    ties = [tie for tie in plan.ties if {*held} & {*tie.stages}]
    stages = {held[0], *(stage for tie in ties for stage in tie.stages)}
    return (max(plan.in_flight[stage] for stage in stages) + 2) * max(1, len(ties))


def _uses_in(
    segment: Segment, version: int, uses: Mapping[MicrobatchId, WeightUse], tie: Tie | None
) -> dict[MicrobatchId, WeightUse]:
    """Return uses of the parts that pass in a segment, and of later ones that need its versions."""
    passing = segment.in_flight.union(
        action.part for action in segment.actions if isinstance(action, Pass)
    )
    newest = version + sum(is_update(action, tie) for action in segment.actions)
    # Parts come in order, and so do the versions that they use.
    later = dropwhile(lambda part: part <= segment.last, uses)
    ahead = takewhile(lambda part: uses[part].stashed <= newest, later)
    return {part: uses[part] for part in (*sorted(passing), *ahead)}


def _several_contribute(actions: Sequence[Action], tie: Tie | None) -> bool:
    """Return whether an update has several contributions, or any is summed over replicas."""
    return any(
        (is_update(action, tie) and action.contributions > 1)
        or (isinstance(action, AllReduce) and action.content == "gradients")
        for action in actions
    )
