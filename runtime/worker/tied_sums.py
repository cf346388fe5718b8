"""Summing gradients of tied weights over stages: what a worker sends, and what it updates by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from drlpp.runtime.stage.gradients import squared_norm_of
from drlpp.runtime.stage.stage_runner import StageRunner
from drlpp.schedule.actions import Message, TiedUpdate


class TiedSums:
    """Contributions and sums of one worker, between a stage's backwards and its update.

    Args:
        runners: the worker's stages.
        take: gives a message that the worker has received, which is not needed again.
    """

    def __init__(
        self, runners: Iterable[StageRunner], take: Callable[[Message], list[Tensor]]
    ) -> None:
        self._runners = {runner.program.stage: runner for runner in runners}
        self._take = take
        self._contributions: dict[tuple[int, int], list[Tensor]] = {}
        self._totals: dict[tuple[int, int], list[Tensor]] = {}

    def sum_over_replicas(self, tie: int) -> None:
        """Sum the gradients of a copy over the replicas of its stage, for its next update."""
        (stage,) = self._runners
        self._runners[stage].weights.gradients[tie].finish_sum()
        # Not every replica has to send it, but all begin anew.
        self._contribution(stage, tie)

    def to_send(self, message: Message) -> list[Tensor]:
        """Return what a message of a tie contains."""
        stage, tie = message.source_stage, message.microbatch
        if message.payload == "contribution":
            return self._contribution(stage, tie)
        return self._total(stage, tie, message.minibatch)

    def update(self, update: TiedUpdate, stage: int) -> None:
        """Update the copy of a stage."""
        total = self._total(stage, update.tie, update.through - 1)
        self._runners[stage].update_tied(update.tie, total, update.contributions)

    def squared_norm(self, last: int) -> float:
        """Return what ties add to the norm over all stages, each once: where their root is.

        Args:
            last: the last minibatch of the update.
        """
        return sum(
            squared_norm_of(self._total(stage, tie, last)[:-1])
            for stage, runner in self._runners.items()
            for tie in runner.weights.ties
            if runner.counts_for_norm and runner.weights.is_root(tie)
        )

    def forget(self) -> None:
        """Note that the update is made."""
        self._contributions.clear()
        self._totals.clear()

    def _contribution(self, stage: int, tie: int) -> list[Tensor]:
        key = stage, tie
        if key not in self._contributions:
            self._contributions[key] = self._runners[stage].weights.contribution(tie)
        return self._contributions[key]

    def _total(self, stage: int, tie: int, last: int) -> list[Tensor]:
        plan = self._runners[stage].weights.plans[tie]
        assert plan.root is not None
        if stage != plan.root:
            if plan.root in self._runners:
                return self._total(plan.root, tie, last)
            return self._take(Message("sum", plan.root, stage, last, tie))
        key = stage, tie
        if key not in self._totals:
            total = self._contribution(stage, tie)
            for other in plan.others:
                # It may be on this worker.
                own = other in self._runners
                message = Message("contribution", other, stage, last, tie)
                more = self._contribution(other, tie) if own else self._take(message)
                total = _added(total, more)
            self._totals[key] = total
        return self._totals[key]


def _added(total: Sequence[Tensor], more: Sequence[Tensor]) -> list[Tensor]:
    # Not in place: what was found is on its way to others.
    return [torch.add(one, another) for one, another in zip(total, more, strict=True)]
