"""ZB-H1 and ZB-V: gradients of weights once each, before their update, of both stages held."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from drlpp.runtime.reference.replay import Replay
from drlpp.runtime.stage.passes.split_backward import SplitBackward
from drlpp.runtime.stage.stage_runner import StageRunner
from drlpp.runtime.worker.executor import Executor
from drlpp.schedule.actions import BackwardWeight, Computation, Message, MicrobatchId, Update
from drlpp.schedule.kinds.kind import Share
from drlpp.schedule.kinds.registry import SCHEDULE_KINDS
from tests.support.mutations.mutation import Break, Mutation, instead


def _left_out(backward_weight: Any) -> Any:
    def of_others(runner: StageRunner, part: MicrobatchId) -> None:
        if part[1]:
            backward_weight(runner, part)
        else:
            runner._in_flight.pop(part)
            runner.weights.done_with(part)

    return of_others


def _times(factor: float) -> Any:
    def broken(of_weights: Any) -> Any:
        def multiplied(split: SplitBackward) -> Sequence[Tensor | None]:
            return [None if g is None else factor * g for g in of_weights(split)]

        return multiplied

    return broken


def _behind_the_update(kind: str) -> Break:
    """The last gradients of weights come after the update that they belong to."""
    row = SCHEDULE_KINDS[kind]

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

    def broken(patch: pytest.MonkeyPatch) -> None:
        patch.setitem(SCHEDULE_KINDS, kind, replace(row, order=late))

    return broken


def _first_stage_only(update: Any) -> Any:
    def updated(runner: StageRunner, contributions: int) -> None:
        if _is_first_held(runner):
            update(runner, contributions)

    return updated


def _is_first_held(runner: StageRunner) -> bool:
    return runner.program.stage < 2


def _lost(payload: str) -> Any:
    def broken(pass_on: Any) -> Any:
        def passed(executor: Executor, message: Message, tensors: list[Tensor]) -> None:
            held = {runner.program.stage for runner in executor.runners}
            if message.payload == payload and message.target_stage in held:
                tensors = [tensor * 0 for tensor in tensors]
            pass_on(executor, message, tensors)

        return passed

    return broken


def _first_counts_twice(contribute: Any) -> Any:
    def twice(replay: Replay, worker: int, stage: int, part: MicrobatchId) -> None:
        passed = replay._passed[worker, stage, part]
        if part[1] == 0:
            passed.gradients = {name: 2 * value for name, value in passed.gradients.items()}
        contribute(replay, worker, stage, part)

    return twice


_H1 = ("ZB-H1 with PyTorch", "ZB-H1 with reference")
_V = ("ZB-V with PyTorch", "ZB-V with reference")

MUTATIONS = (
    Mutation(
        "gradients of weights are dropped",
        instead(StageRunner, "backward_weight", _left_out),
        (*_H1, *_V),
    ),
    Mutation(
        "gradients of weights count twice",
        instead(SplitBackward, "of_weights", _times(2)),
        (*_H1, *_V),
    ),
    Mutation(
        "ZB-H1's last W behind its update", _behind_the_update("zb-h1"), ("ZB-H1 with PyTorch",)
    ),
    Mutation("ZB-V's last W behind its update", _behind_the_update("zb-v"), ("ZB-V with PyTorch",)),
    Mutation(
        "a worker updates its first stage only",
        instead(StageRunner, "update", _first_stage_only),
        _V,
    ),
    Mutation(
        "a norm without a worker's second stage",
        instead(
            StageRunner,
            "own_squared_norm",
            lambda norm: lambda runner: norm(runner) if _is_first_held(runner) else 0.0,
        ),
        _V,
    ),
    Mutation(
        "an activation between a worker's stages is lost",
        instead(Executor, "_pass_on", _lost("activation")),
        _V,
    ),
    Mutation(
        "a gradient between a worker's stages is lost",
        instead(Executor, "_pass_on", _lost("gradient")),
        _V,
    ),
    Mutation(
        "the reference counts a microbatch twice",
        instead(Replay, "_contribute", _first_counts_twice),
        ("ZB-H1 with reference", "ZB-V with reference"),
    ),
)
