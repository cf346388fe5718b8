"""ZB-H1 and ZB-V: gradients of weights once each, before their update, of both stages held."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from drlpp.runtime.reference.reference import ReferenceExecutor
from drlpp.runtime.stage.passes.split_backward import SplitBackward
from drlpp.runtime.stage.stage_runner import StageRunner
from drlpp.runtime.worker.executor import Executor
from drlpp.schedule.actions import BackwardWeight, Computation, Message, MicrobatchId, Update
from drlpp.schedule.kinds.kind import Share
from drlpp.schedule.kinds.registry import SCHEDULE_KINDS
from tests.support.mutations.mutation import Mutations

_H1 = ("ZB-H1 with PyTorch", "ZB-H1 with reference")
_V = ("ZB-V with PyTorch", "ZB-V with reference")

MUTATIONS = Mutations()
_row = MUTATIONS.row


@_row("gradients of weights are dropped", (*_H1, *_V), StageRunner, "backward_weight")
def _(backward_weight: Any) -> Any:
    def of_others(runner: StageRunner, part: MicrobatchId) -> None:
        if part[1]:
            backward_weight(runner, part)
        else:
            runner._in_flight.pop(part)
            runner.weights.done_with(part)

    return of_others


_row("gradients of weights count twice", (*_H1, *_V), SplitBackward, "of_weights")(
    lambda of_weights: lambda split: [None if g is None else 2 * g for g in of_weights(split)]
)


def _behind_the_update(row: Any) -> Any:
    """The last gradients of weights come after the update that they belong to."""

    def late(share: Share) -> Iterator[Computation]:
        behind: list[Computation] = []
        of_update: list[Computation] = []
        for action in row.order(share):
            of_update.append(action)
            if isinstance(action, Update):
                last = max(i for i, a in enumerate(of_update) if isinstance(a, BackwardWeight))
                slipping = of_update.pop(last)
                yield from [*behind, *of_update]
                behind, of_update = [slipping], []
        yield from behind

    return replace(row, order=late)


_row("ZB-H1's last W behind its update", _H1[:1], SCHEDULE_KINDS, "zb-h1")(_behind_the_update)
_row("ZB-V's last W behind its update", _V[:1], SCHEDULE_KINDS, "zb-v")(_behind_the_update)
_row("a worker updates its first stage only", _V, StageRunner, "update")(
    lambda update: lambda runner, n: update(runner, n) if runner.program.stage < 2 else None
)


@_row("a norm without a worker's second stage", _V, Executor, "_share_squared_norm")
def _(share: Any) -> Any:
    def of_the_first(executor: Executor, version: int) -> None:
        both, executor.runners = executor.runners, executor.runners[:1]
        share(executor, version)
        executor.runners = both
        for runner in executor._trained:
            runner.squared_norm = executor._trained[0].squared_norm

    return of_the_first


def _lost(payload: str) -> Any:
    def broken(pass_on: Any) -> Any:
        def passed(executor: Executor, message: Message, tensors: Any) -> None:
            held = {runner.program.stage for runner in executor.runners}
            if message.payload == payload and message.target_stage in held:
                tensors = [tensor * 0 for tensor in tensors]
            pass_on(executor, message, tensors)

        return passed

    return broken


_row("an activation between a worker's stages is lost", _V, Executor, "_pass_on")(
    _lost("activation")
)
_row("a gradient between a worker's stages is lost", _V, Executor, "_pass_on")(_lost("gradient"))


@_row("the reference counts a microbatch twice", (_H1[1], _V[1]), ReferenceExecutor, "_contribute")
def _(contribute: Any) -> Any:
    def twice(replay: ReferenceExecutor, worker: int, stage: int, part: MicrobatchId) -> None:
        passed = replay._passed[worker, stage, part]
        if part[1] == 0:
            passed.gradients = {name: 2 * value for name, value in passed.gradients.items()}
        contribute(replay, worker, stage, part)

    return twice
