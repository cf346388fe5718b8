"""Asynchronous 1F1B over microbatches: which weights a part meets, the mean, when an update is."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor

from drlpp.placement import execution_plan
from drlpp.runtime.reference.reference import ReferenceExecutor
from drlpp.runtime.reference.reference_weights import StageHistory
from drlpp.runtime.stage import weight_group
from drlpp.runtime.stage.gradients import SharedGradients
from drlpp.runtime.stage.minibatches import Minibatches
from drlpp.runtime.stage.stage_weights import StageWeights
from drlpp.runtime.weights.displacements import PredictedWeights
from drlpp.runtime.weights.policies import Stash, Vanilla
from drlpp.schedule import lowering
from drlpp.schedule.actions import MicrobatchId, Update
from drlpp.schedule.kinds.kind import Share
from drlpp.schedule.weight_policies import WEIGHT_POLICIES
from tests.support.mutations.mutation import Mutation, Mutations

_ALL = ("stashing with rule", "PACI with rule", "PipeOptim with rule", "2BW with rule")
_PREDICTED = ("PipeOptim with rule", "PipeOptim with reference")
_REPLICATED = ("replicated with rule", "replicated with reference")
_WITH_REFERENCE = (
    "stashing with reference",
    "PACI with reference",
    "PipeOptim with reference",
    "replicated with reference",
)
_MEAN = ("one stage with PyTorch", *_ALL, *_WITH_REFERENCE)

MUTATIONS = Mutations()
_row = MUTATIONS.row


@_row(
    "all microbatches meet what the first meets", (_ALL[0], _ALL[2]), execution_plan, "weight_uses"
)
def _(weight_uses: Any) -> Any:
    def of_the_first(*given: Any) -> dict[int, dict[MicrobatchId, Any]]:
        uses = weight_uses(*given)
        return {w: {(t, j): of[t, 0] for t, j in of} for w, of in uses.items()}

    return of_the_first


_row("2BW meets the newest", ("2BW with rule",), WEIGHT_POLICIES, "2bw")(
    lambda row: replace(row, version=lambda counts: counts.newest_in_forward)
)
_row(
    "a stashed backward by the newest",
    (_ALL[0], _WITH_REFERENCE[0], _REPLICATED[1]),
    weight_group,
    "Stash",
)(lambda _: Vanilla)
_row(
    "PACI's backward by the forward's weights",
    (_ALL[1], _WITH_REFERENCE[1]),
    weight_group,
    "Vanilla",
)(lambda _: Stash)
_row("a prediction for the backward too", _PREDICTED, PredictedWeights, "lent")(
    lambda lent: lambda policy, use, backward: lent(policy, use)
)
_row("a prediction of one update, however late", _PREDICTED, PredictedWeights, "rate_sum")(
    lambda rate_sum: lambda policy, lead: rate_sum(policy, min(lead, 1))
)
_row("the sum over microbatches", _MEAN, StageWeights, "update")(
    lambda update: lambda weights, _, *others: update(weights, 1, *others)
)
_row("the mean over more microbatches than there are", _MEAN, StageWeights, "update")(
    lambda update: lambda weights, _, *others: update(weights, 5, *others)
)
_row("every microbatch is the first", (*_MEAN[:5], _REPLICATED[0]), Minibatches, "_take")(
    lambda take: lambda data, x, part: take(data, x, (part[0], 0))
)


def _updates_after(parts_more: int) -> Any:
    """So many parts later than the last of a minibatch; all that are left make the last update."""

    def broken(updates: Any) -> Any:
        def shifted(share: Share) -> Iterator[tuple[list[MicrobatchId], Update]]:
            found = list(updates(share))
            all_parts = [part for parts, _ in found for part in parts]
            begin, end = 0, parts_more
            for parts, update in found:
                end += len(parts)
                last = update is found[-1][1]
                yield all_parts[begin : None if last else end], update
                begin = end

        return shifted

    return broken


_row("an update before the last microbatch", _MEAN[:5], Share, "updates")(_updates_after(-1))
_row("an update behind the next minibatch's first", _MEAN[:5], Share, "updates")(_updates_after(1))
_row("replicas keep their gradients", _REPLICATED, SharedGradients, "finish_sum")(
    lambda _: lambda gradients: None
)


def _by_minibatches(share: Share, first: int = 0, through: int | None = None) -> list[MicrobatchId]:
    minibatches = range(first, share.minibatches if through is None else through)
    own = [t for t in minibatches if t % share.replicas == share.replica]
    return [(t, j) for t in own for j in range(share.microbatches)]


MUTATIONS.append(
    Mutation(
        "replicas take turns by minibatches",
        _REPLICATED[:1],
        ((lowering, "replica_of"), (Share, "parts")),
        lambda before: (
            _by_minibatches
            if before is Share.parts
            else lambda part, microbatches, replicas: part[0] % replicas
        ),
    )
)


@_row("the reference sums over microbatches", _WITH_REFERENCE, ReferenceExecutor, "_mean")
def _(mean: Any) -> Any:
    def total(replay: ReferenceExecutor, stage: int) -> dict[str, Tensor]:
        parts = len(replay._pending[stage, None])
        return {name: parts * value for name, value in mean(replay, stage).items()}

    return total


_row("the reference predicts nothing", _PREDICTED[1:], StageHistory, "_predicted")(
    lambda predicted: lambda history, version, lead, rates: history.versions[version]
)
