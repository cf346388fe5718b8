"""Asynchronous 1F1B over microbatches: which weights a part meets, the mean, when an update is."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from drlpp.placement import execution_plan
from drlpp.runtime.reference.reference_weights import StageHistory
from drlpp.runtime.reference.replay import Replay
from drlpp.runtime.stage.data.minibatches import Minibatches
from drlpp.runtime.stage.gradients import SharedGradients
from drlpp.runtime.stage.stage_weights import StageWeights
from drlpp.runtime.weights import policies
from drlpp.runtime.weights.policies import PredictedWeights
from drlpp.schedule import lowering
from drlpp.schedule.actions import MicrobatchId, Update
from drlpp.schedule.kinds.kind import Share
from drlpp.schedule.weight_policies import WEIGHT_POLICIES, PartCounts
from tests.support.mutations.mutation import Break, Mutation, instead


def _parts_meet_what_the_first_meets(weight_uses: Any) -> Any:
    def of_the_first(*given: Any) -> dict[int, dict[MicrobatchId, Any]]:
        uses = weight_uses(*given)
        return {w: {(t, j): of[t, 0] for t, j in of} for w, of in uses.items()}

    return of_the_first


def _meets_the_newest(policy: str) -> Break:
    row = WEIGHT_POLICIES[policy]

    def newest(counts: PartCounts) -> int:
        return counts.newest_in_forward

    return lambda patch: patch.setitem(WEIGHT_POLICIES, policy, replace(row, version=newest))


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


def _replicas_take_turns_by_minibatches(patch: pytest.MonkeyPatch) -> None:
    def of_minibatch(part: MicrobatchId, microbatches: int, replicas: int) -> int:
        return part[0] % replicas

    def parts(share: Share, first: int = 0, through: int | None = None) -> list[MicrobatchId]:
        minibatches = range(first, share.minibatches if through is None else through)
        own = [t for t in minibatches if t % share.replicas == share.replica]
        return [(t, j) for t in own for j in range(share.microbatches)]

    patch.setattr(lowering, "replica_of", of_minibatch)
    patch.setattr(Share, "parts", parts)


def _divided_by(contributions: int) -> Any:
    return lambda update: lambda weights, _, *others: update(weights, contributions, *others)


def _sum_of_parts(mean: Any) -> Any:
    def total(replay: Replay, stage: int) -> dict[str, Tensor]:
        parts = len(replay._pending[stage])
        return {name: parts * value for name, value in mean(replay, stage).items()}

    return total


def _one_update_ahead(displaced: Any) -> Any:
    return lambda policy, lead: displaced(policy, min(lead, 1))


def _stays(predicted: Any) -> Any:
    return lambda history, version, lead, rates: history.versions[version]


_ALL = ("stashing with rule", "PACI with rule", "PipeOptim with rule", "2BW with rule")
_WITH_REFERENCE = (
    "stashing with reference",
    "PACI with reference",
    "PipeOptim with reference",
    "replicated with reference",
)

MUTATIONS = (
    Mutation(
        "all microbatches meet what the first meets",
        instead(execution_plan, "weight_uses", _parts_meet_what_the_first_meets),
        ("stashing with rule", "PipeOptim with rule"),
    ),
    Mutation("2BW meets the newest", _meets_the_newest("2bw"), ("2BW with rule",)),
    Mutation("2BW-EF meets the newest", _meets_the_newest("2bw-ef"), ("2BW-EF with rule",)),
    Mutation(
        "a stashed backward by the newest",
        instead(policies, "Stash", lambda _: policies.Vanilla),
        ("stashing with rule", "stashing with reference", "replicated with reference"),
    ),
    Mutation(
        "PACI's backward by the forward's weights",
        instead(policies, "Vanilla", lambda _: policies.Stash),
        ("PACI with rule", "PACI with reference"),
    ),
    Mutation(
        "a prediction for the backward too",
        instead(PredictedWeights, "backward_weights", lambda _: PredictedWeights.forward_weights),
        ("PipeOptim with rule", "PipeOptim with reference"),
    ),
    Mutation(
        "a prediction of one update, however late",
        instead(PredictedWeights, "_displaced", _one_update_ahead),
        ("PipeOptim with rule", "PipeOptim with reference"),
    ),
    Mutation(
        "the sum over microbatches",
        instead(StageWeights, "update", _divided_by(1)),
        ("one stage with PyTorch", *_ALL, *_WITH_REFERENCE),
    ),
    Mutation(
        "the mean over more microbatches than there are",
        instead(StageWeights, "update", _divided_by(5)),
        ("one stage with PyTorch", *_ALL, *_WITH_REFERENCE),
    ),
    Mutation(
        "every microbatch is the first",
        instead(
            Minibatches, "_take", lambda take: lambda data, x, part: take(data, x, (part[0], 0))
        ),
        ("one stage with PyTorch", *_ALL, "replicated with rule"),
    ),
    Mutation(
        "an update before the last microbatch",
        instead(Share, "updates", _updates_after(-1)),
        ("one stage with PyTorch", *_ALL),
    ),
    Mutation(
        "an update behind the next minibatch's first",
        instead(Share, "updates", _updates_after(1)),
        ("one stage with PyTorch", *_ALL),
    ),
    Mutation(
        "replicas keep their gradients",
        instead(SharedGradients, "finish_sum", lambda _: lambda gradients: None),
        ("replicated with rule", "replicated with reference"),
    ),
    Mutation(
        "replicas take turns by minibatches",
        _replicas_take_turns_by_minibatches,
        ("replicated with rule",),
    ),
    Mutation(
        "the reference sums over microbatches",
        instead(Replay, "_mean", _sum_of_parts),
        _WITH_REFERENCE,
    ),
    Mutation(
        "the reference predicts nothing",
        instead(StageHistory, "_predicted", _stays),
        ("PipeOptim with reference",),
    ),
)
