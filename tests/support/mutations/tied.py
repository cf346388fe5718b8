"""Parameters that several stages share: every sentence of the rule for them.

The rule is that of `docs/methods.md`, "Parameters that several stages share", which
:mod:`tests.support.models.tied_chain` writes out for four stages. Each mutation breaks one sentence
of it, in the code of workers, of the reference, or of the schedule that both follow.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from torch import Tensor

from drlpp.capturing.graph import OpGraph
from drlpp.models.model_reference import ModelReference
from drlpp.placement import execution_plan
from drlpp.placement.placement import Placement
from drlpp.runtime.reference.replay import Replay
from drlpp.runtime.stage.stage_weights import StageWeights
from drlpp.runtime.worker import tied_sums
from drlpp.runtime.worker.tied_sums import TiedSums
from drlpp.schedule import ties
from drlpp.schedule.analysis import update_rates, weight_versions
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.ties import Tie
from drlpp.schedule.weight_policies import PartCounts
from tests.support.models.tied import order, samples
from tests.support.models.tied_chain import by_the_rule, in_four_stages
from tests.support.mutations.mutation import Break, Comparison, Mutation
from tests.support.mutations.trained import MOMENTUM, RATE, Subject, Trained


def _placements(graph: OpGraph) -> dict[str, Placement]:
    """Four stages, and two replicas of the first two of them together and one of the others."""
    straight = in_four_stages(graph)
    stages = straight.stage_of_operator(len(graph))
    replicated = Placement.from_assignment([int(stage > 1) for stage in stages], (0, 0, 1))
    return {"straight": straight, "replicated": replicated}


_SUBJECT = Subject(
    ModelReference.named("tests.support.models.tied_chain:tied_chain"),
    _placements,
    samples(),
    order(10),
)
_FLUSHED = Trained(
    _SUBJECT, Method(schedule="1f1b-flush", policy="sync", microbatches=2, clip_norm=0.05)
)
STASH = Trained(_SUBJECT, Method(policy="stash"))
_PIPEOPTIM = Trained(_SUBJECT, Method(policy="pipeoptim"))
_RULE = partial(by_the_rule, rate=RATE, momentum=MOMENTUM)


def _reference(placement: str = "straight", /, **method: Any) -> Comparison:
    return Trained(_SUBJECT, Method(**method), placement=placement).with_reference


COMPARISONS: dict[str, Comparison] = {
    "tied, flushed with PyTorch": _FLUSHED.with_pytorch,
    "tied, flushed with reference": _FLUSHED.with_reference,
    "tied, stashing with rule": partial(STASH.with_rule, partial(_RULE, predicts=False)),
    "tied, stashing with reference": STASH.with_reference,
    "tied, PipeOptim with rule": partial(_PIPEOPTIM.with_rule, partial(_RULE, predicts=True)),
    "tied, replicated with reference": _reference("replicated", policy="stash"),
    "tied, clipped with reference": _reference(policy="stash", clip_norm=0.05),
    "tied, T1 with reference": _reference(policy="pipemare", annealing_minibatches=9),
    "tied, T2 with reference": _reference(policy="pipemare", correction_decay=0.2),
}


def _a_stage_is_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tied_sums, "_added", lambda total, more: list(total))


def _a_stage_counts_twice(patch: pytest.MonkeyPatch) -> None:
    added = tied_sums._added
    patch.setattr(tied_sums, "_added", lambda total, more: added(added(total, more), more))


def _the_mean_over_stages(patch: pytest.MonkeyPatch) -> None:
    update_by = StageWeights.update_by

    def divided(weights: StageWeights, tie: int, total: list[Tensor], *others: Any) -> bool:
        *gradients, reached = total
        stages = 1 + len(weights.plans[tie].others)
        return update_by(weights, tie, [*(g / stages for g in gradients), reached], *others)

    patch.setattr(StageWeights, "update_by", divided)


def _copies_go_their_own_ways(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TiedSums, "_total", lambda sums, stage, tie, last: sums._contribution(stage, tie))


def _replicas_are_left_out(patch: pytest.MonkeyPatch) -> None:
    def alone(sums: TiedSums, tie: int) -> None:
        (stage,) = sums._runners
        sums._contribution(stage, tie)

    patch.setattr(TiedSums, "sum_over_replicas", alone)


def _clipping_counts(times: int) -> Break:
    squared_norm = TiedSums.squared_norm

    def mutate(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(TiedSums, "squared_norm", lambda sums, last: times * squared_norm(sums, last))

    return mutate


def _copies_are_not_clipped(patch: pytest.MonkeyPatch) -> None:
    update_by = StageWeights.update_by
    patch.setattr(
        StageWeights,
        "update_by",
        lambda weights, tie, total, contributions, norm: update_by(
            weights, tie, total, contributions, 0.0
        ),
    )


def _copies_are_updated(updates: int) -> Break:
    """So many updates early, or late."""
    met_at_root = ties._met_at_root

    def shifted(*given: Any) -> dict[Any, int]:
        met = met_at_root(*given)
        return {part: max(0, version + updates if version else 0) for part, version in met.items()}

    return lambda patch: patch.setattr(ties, "_met_at_root", shifted)


def _copies_look_ahead_without(*counts: str) -> Break:
    def without(**given: int) -> PartCounts:
        return PartCounts(**(given | dict.fromkeys(counts, 0)))

    return lambda patch: patch.setattr(weight_versions, "PartCounts", without)


def _as_late_as_the_last_stage(module: Any) -> Break:
    def of_last(pipeline: Pipeline, tie: Tie, method: Method) -> int:
        return weight_versions.steady_delay(pipeline, tie.stages[-1], method)

    return lambda patch: patch.setattr(module, "tied_delay", of_last)


def _reference_leaves_out_a_stage(patch: pytest.MonkeyPatch) -> None:
    gradient = Replay._tied_gradient
    patch.setattr(
        Replay,
        "_tied_gradient",
        lambda replay, tie, version: gradient(
            replay, replace(tie, stages=tie.stages[:-1]), version
        ),
    )


def _reference_takes_the_mean(patch: pytest.MonkeyPatch) -> None:
    gradient = Replay._tied_gradient

    def mean(replay: Replay, tie: Tie, version: int) -> dict[str, Tensor]:
        found = gradient(replay, tie, version)
        return {name: value / len(tie.stages) for name, value in found.items()}

    patch.setattr(Replay, "_tied_gradient", mean)


_SUMS = ("tied, flushed with PyTorch", "tied, flushed with reference", "tied, stashing with rule")
_WITH_REFERENCE = ("tied, flushed with reference", "tied, stashing with reference")
_WITH_RULE = ("tied, stashing with rule", "tied, PipeOptim with rule")

MUTATIONS = (
    Mutation("a stage is left out", _a_stage_is_left_out, _SUMS),
    Mutation("a stage counts twice", _a_stage_counts_twice, _SUMS),
    Mutation("the mean over stages", _the_mean_over_stages, _SUMS),
    Mutation("copies go their own ways", _copies_go_their_own_ways, _SUMS),
    Mutation("replicas are left out", _replicas_are_left_out, ("tied, replicated with reference",)),
    Mutation("clipping counts it twice", _clipping_counts(2), _SUMS[:2]),
    Mutation("clipping leaves it out", _clipping_counts(0), _SUMS[:2]),
    Mutation("copies are not clipped", _copies_are_not_clipped, ("tied, clipped with reference",)),
    Mutation("an update too early", _copies_are_updated(1), _WITH_RULE),
    Mutation("an update too late", _copies_are_updated(-1), _WITH_RULE),
    Mutation(
        "looking ahead without lateness",
        _copies_look_ahead_without("still_to_come"),
        ("tied, PipeOptim with rule",),
    ),
    Mutation(
        "T1 by the last stage",
        _as_late_as_the_last_stage(update_rates),
        ("tied, T1 with reference",),
    ),
    Mutation(
        "T2 by the last stage",
        _as_late_as_the_last_stage(execution_plan),
        ("tied, T2 with reference",),
    ),
    Mutation("reference leaves out a stage", _reference_leaves_out_a_stage, _WITH_REFERENCE),
    Mutation("reference takes the mean", _reference_takes_the_mean, _WITH_REFERENCE),
)
