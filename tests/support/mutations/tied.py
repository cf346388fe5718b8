"""Parameters that several stages share: every sentence of the rule for them.

The rule is that of `docs/methods.md`, "Parameters that several stages share", which
:mod:`tests.support.models.tied_chain` writes out for four stages. Each mutation breaks one sentence
of it, in the code of workers, of the reference, or of the schedule that both follow.
"""

from functools import partial
from typing import Any

from torch import Tensor

from drlpp.capturing.graph import OpGraph
from drlpp.models.model_reference import ModelReference
from drlpp.placement import execution_plan
from drlpp.placement.placement import Placement
from drlpp.runtime.reference.reference import ReferenceExecutor
from drlpp.runtime.stage.stage_weights import StageWeights
from drlpp.runtime.worker import executor
from drlpp.runtime.worker.executor import TiedSums
from drlpp.schedule import ties
from drlpp.schedule.analysis import weight_versions
from drlpp.schedule.method import Method
from tests.support.models.tied import order, samples
from tests.support.models.tied_chain import by_the_rule, in_four_stages
from tests.support.mutations.mutation import Comparison, Mutations
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


_SUMS = ("tied, flushed with PyTorch", "tied, flushed with reference", "tied, stashing with rule")
_WITH_REFERENCE = ("tied, flushed with reference", "tied, stashing with reference")
_WITH_RULE = ("tied, stashing with rule", "tied, PipeOptim with rule")

MUTATIONS = Mutations()
_row = MUTATIONS.row

_row("a stage is left out", _SUMS, executor, "_added")(lambda _: lambda total, *_: list(total))
_row("a stage counts twice", _SUMS, executor, "_added")(
    lambda added: lambda total, more, _: added(added(total, more, None), more, None)
)


@_row("the mean over stages", _SUMS, StageWeights, "update_by")
def _(update_by: Any) -> Any:
    def divided(weights: StageWeights, tie: int, total: list[Tensor], *others: Any) -> bool:
        *gradients, reached = total
        stages = 1 + len(weights.plans[tie].others)
        return update_by(weights, tie, [*(g / stages for g in gradients), reached], *others)

    return divided


_row("copies go their own ways", _SUMS, TiedSums, "_total")(
    lambda _: lambda sums, stage, tie, last: sums._contribution(stage, tie)
)
_row("replicas are left out", ("tied, replicated with reference",), TiedSums, "sum_over_replicas")(
    lambda _: lambda sums, tie: sums._contribution(next(iter(sums._runners)), tie)
)
_row("clipping counts it twice", _SUMS[:2], TiedSums, "squared_norm")(
    lambda norm: lambda sums, last: 2 * norm(sums, last)
)
_row("clipping leaves it out", _SUMS[:2], TiedSums, "squared_norm")(
    lambda _: lambda sums, last: 0.0
)
_row("copies are not clipped", ("tied, clipped with reference",), StageWeights, "update_by")(
    lambda update_by: lambda weights, tie, total, n, norm: update_by(weights, tie, total, n, 0.0)
)

for _name, _updates in (("an update too early", 1), ("an update too late", -1)):

    @_row(_name, _WITH_RULE, ties, "_met_at_root")
    def _(met_at_root: Any, updates: int = _updates) -> Any:
        def shifted(*given: Any) -> dict[Any, int]:
            met = met_at_root(*given).items()
            return {part: max(0, version + updates if version else 0) for part, version in met}

        return shifted


_row("looking ahead without lateness", _WITH_RULE[1:], weight_versions, "PartCounts")(
    lambda counts: lambda *newest, **given: counts(*newest, **(given | {"still_to_come": 0}))
)


def _as_late_as_the_last_stage(_: Any) -> Any:
    return lambda pipeline, tie, method: weight_versions.steady_delays(pipeline, method)[
        tie.stages[-1]
    ]


_row("T1 by the last stage", ("tied, T1 with reference",), weight_versions, "tied_delay")(
    _as_late_as_the_last_stage
)
_row("T2 by the last stage", ("tied, T2 with reference",), execution_plan, "tied_delay")(
    _as_late_as_the_last_stage
)


@_row("reference leaves out a stage", _WITH_REFERENCE, ReferenceExecutor, "_tied_gradient")
def _(gradient: Any) -> Any:
    def of_the_others(replay: ReferenceExecutor, tie: ties.Tie, version: int) -> dict[str, Tensor]:
        left_out = tie.stages[-1], tie
        replay._pending[left_out] = {part: {} for part in replay._pending[left_out]}
        return gradient(replay, tie, version)

    return of_the_others


_row("reference takes the mean", _WITH_REFERENCE, ReferenceExecutor, "_tied_gradient")(
    lambda gradient: (
        lambda replay, tie, version: {
            name: value / len(tie.stages) for name, value in gradient(replay, tie, version).items()
        }
    )
)
