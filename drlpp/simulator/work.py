"""What the stages of a placement do for a minibatch, all stages at once."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import NamedTuple

import numpy

from drlpp.costs.placed_stages import PlacedStages
from drlpp.costs.stage_cost import Array, StageWork
from drlpp.costs.workload import Workload
from drlpp.schedule.actions import Payload
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.weight_policies import Lookahead, PartCounts

MessageKind = tuple[Payload, int, int]
"""(payload, source stage, target stage)."""


@dataclass(frozen=True)
class PassOverhead:
    """Seconds that the passes of every stage take besides its operators; ``(stages,)`` each.

    Those that predict weights, or correct them, are in them. A half of a backward has what a whole
    one has, that for weights alone collects gradients, and the two share what splitting takes.
    """

    forward: Array
    backward: Array
    backward_input: Array
    backward_weight: Array
    forward_prediction: Array
    backward_prediction: Array

    @classmethod
    def of(
        cls,
        workload: Workload,
        work: PlacedWork,
        pipeline: Pipeline,
        method: Method,
    ) -> PassOverhead:
        """Compute the overhead of starting a pass, predicting weights, and collecting gradients.

        A stage moves its weights where it looks ahead or back in steady state
        (:func:`drlpp.schedule.analysis.weight_versions.weight_uses`), which not all microbatches
        do: of n in an update, min(n, (d − 1)·m) meet an update between their passes, with d in
        flight on each of m replicas. It collects the gradients of several passes for its update if
        it is replicated, accumulates or has microbatches.
        """
        bytes_ = work.memory.parameter_bytes
        forward, backward = _moving(pipeline.numbered, method)
        collects = numpy.array([len(workers) > 1 for workers in pipeline.stages])
        collects |= method.microbatches > 1 or method.accumulate > 1
        tied_forward, tied_backward = numpy.zeros((2, len(pipeline.stages)))
        looks = method.lookahead or Lookahead()
        ties = method.ties(pipeline) if pipeline.ties else ()
        for tie, shared in zip(ties, work.ties.values(), strict=True):
            parts, apart = tie.together * method.microbatches, method.parts_in_between(pipeline)
            late = PartCounts(0, 0, still_to_come=1)
            for stage in tie.others:
                # As far ahead as at the root, whose update is still to come at the backward.
                coming = min(1.0, (apart[tie.root] - apart[stage]) / parts)
                looks_back = coming * (looks.backward(late) != 0)
                tied_forward[stage] += shared.bytes_ * (forward[tie.root] - forward[stage])
                tied_backward[stage] += shared.bytes_ * max(looks_back - backward[stage], 0.0)
        seconds_per_byte = workload.prediction_seconds_per_byte
        collecting = bytes_ * workload.sharing_seconds_per_byte
        forward_prediction = seconds_per_byte * (bytes_ * forward + tied_forward)
        backward_prediction = seconds_per_byte * (bytes_ * backward + tied_backward)
        half = workload.backward_overhead_seconds + workload.split_seconds * work.weighted / 2
        return cls(
            forward=workload.forward_overhead_seconds + forward_prediction,
            backward=workload.backward_overhead_seconds
            + backward_prediction
            + collecting * collects,
            backward_input=half,
            backward_weight=half + collecting * collects,
            forward_prediction=forward_prediction,
            backward_prediction=backward_prediction,
        )

    def times(self, factors: Array) -> PassOverhead:
        """Return what passes take besides their operators, each stage's times a factor."""
        return PassOverhead(
            **{of.name: getattr(self, of.name) * factors for of in fields(PassOverhead)}
        )


@lru_cache(maxsize=1024)
def _moving(shape: Pipeline, method: Method) -> tuple[Array, Array]:
    """Return the parts of the stages' forwards, and backwards, that look ahead or back.

    That is in steady state. Whether they do, not how far, decides where weights are moved.
    """
    looks, apart = method.lookahead or Lookahead(), method.parts_in_between(shape)
    found = numpy.zeros((2, len(apart)))
    for stage, workers in enumerate(shape.stages):
        parts = method.parts_of_update(len(workers))
        late = min(1.0, apart[stage] / parts)
        until_input = shape.rank(stage) // (2 * parts)
        at_once, later = (PartCounts(0, behind, until_input=until_input) for behind in (0, 1))
        found[:, stage] = [
            late * (count(later) != 0) + (1 - late) * (count(at_once) != 0)
            for count in (looks.forward, looks.backward)
        ]
    return found[0], found[1]


class TiedWork(NamedTuple):
    """The weights of a tie, at speed 1: what a copy takes for an update, and its bytes."""

    bytes_: float
    update_seconds: float


Ties = dict[tuple[int, ...], TiedWork]
"""By the stages that hold copies, in the order of ``Pipeline.ties``."""


@dataclass(frozen=True)
class PlacedWork:
    """The work of every stage at speed 1; arrays have shape ``(stages,)``.

    Attributes:
        forward_seconds, backward_seconds, update_seconds: of the stages, the passes those of their
            operators alone.
        own_update_seconds: of updates without those of copies of other stages' weights.
        backward_weight_seconds: of the half of a backward for weights, in ``backward_seconds``.
        half_done_bytes: what a minibatch keeps between the halves of its backward, in addition to
            its activations.
        weighted: how many operators with weights they have.
        memory: what their memory follows from, as ``Workload.stage`` gives it for one stage.
        message_bytes: of a minibatch, by payload and edge of the stage graph.
        ties: the weights that stages hold copies of.
    """

    forward_seconds: Array
    backward_seconds: Array
    backward_weight_seconds: Array
    update_seconds: Array
    own_update_seconds: Array
    half_done_bytes: Array
    weighted: Array
    memory: StageWork
    message_bytes: dict[MessageKind, float]
    ties: Ties

    @classmethod
    def of(cls, placed: PlacedStages) -> PlacedWork:
        """Add up operators and tensors."""
        workload, total, exchange = placed.workload, placed.total, placed.exchange
        memory = placed.work
        stage_of = placed.stage_of[:-1].tolist()
        ties = {
            tied: TiedWork(
                sum(tie.bytes_ for tie in members),
                sum(workload.tied_update_seconds(tie) for tie in members),
            )
            for tied, members in workload.ties_between(stage_of).items()
        }
        own_update_seconds = memory.update_seconds.copy()
        for tied, shared in ties.items():
            own_update_seconds[list(tied)] -= shared.update_seconds
        return cls(
            forward_seconds=total(workload.forward_seconds),
            backward_seconds=total(workload.backward_seconds),
            backward_weight_seconds=total(workload.backward_weight_seconds),
            update_seconds=memory.update_seconds,
            own_update_seconds=numpy.maximum(own_update_seconds, 0.0),
            half_done_bytes=total(workload.half_done_bytes),
            weighted=total((workload.parameter_bytes > 0).astype(numpy.float64)),
            memory=memory,
            message_bytes={
                ("activation" if source < target else "gradient", source, target): float(
                    exchange.bytes_[source, target]
                )
                for source, target in numpy.argwhere(exchange.talks).tolist()
            },
            ties=ties,
        )

    def times(self, factors: Array) -> PlacedWork:
        """Return the work where all that stages compute takes so many times as long.

        Updates of copies of weights do not.
        """
        seconds = {
            name: getattr(self, name) * factors
            for name in (
                "forward_seconds",
                "backward_seconds",
                "backward_weight_seconds",
                "update_seconds",
                "own_update_seconds",
            )
        }
        return replace(self, **seconds)
