"""Error feedback, the last applied step, momentum by stage, a rotated basis."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from drlpp.runtime.deploying import deployment
from drlpp.runtime.reference import reference
from drlpp.runtime.reference.reference_weights import StageHistory
from drlpp.runtime.weights.displacements import LastStep
from drlpp.runtime.weights.error_feedback import ErrorFeedback
from drlpp.specs import basis_rotation
from tests.support.mutations.mutation import Mutation, instead


def _other_sign(correct: Any) -> Any:
    @torch.no_grad()
    def corrected(feedback: ErrorFeedback, before: Sequence[Tensor]) -> None:
        made = [weight.clone() for weight in feedback._weights]
        correct(feedback, before)
        for weight, uncorrected in zip(feedback._weights, made, strict=True):
            weight.copy_(2 * uncorrected - weight)

    return corrected


def _of_the_corrected_step(correct: Any) -> Any:
    def corrected(feedback: ErrorFeedback, before: Sequence[Tensor]) -> None:
        correct(feedback, before)
        rate = float(feedback._optimizer.param_groups[0]["lr"])
        feedback._directions = [
            (old - weight.detach()) / rate
            for weight, old in zip(feedback._weights, before, strict=True)
        ]

    return corrected


def _from_nothing(forget: Any) -> Any:
    def with_zeros(feedback: ErrorFeedback) -> None:
        feedback._directions = [torch.zeros_like(weight) for weight in feedback._weights]

    return with_zeros


def _by(lead_and_rates: Any) -> Any:
    """A last step that goes as far as ``lead_and_rates`` of step, updates and sum of rates."""
    return lambda move: (
        lambda step, lead, rates: move(step, lead, lead_and_rates(step, lead, rates))
    )


def _without_decay(update: Any) -> Any:
    def updated(history: StageHistory, *given: Any) -> None:
        update(history, *given)
        history._applied_step = history._last_step

    return updated


def _once(turn: Any) -> Any:
    return lambda state, side: None if f"basis_{side}" in state else turn(state, side)


def _unsorted(turn: Any) -> Any:
    def turned(state: dict[str, Tensor], side: int) -> None:
        squares = state["exp_avg_sq"]
        turn(state, side)
        state["exp_avg_sq"] = squares

    return turned


def _never_back(rotated: Any) -> Any:
    return lambda matrix, state, *, back=False: matrix if back else rotated(matrix, state)


def _the_other_way(rotated: Any) -> Any:
    return lambda matrix, state, *, back=False: rotated(matrix, state, back=not back)


_FEEDBACK = ("2BW-EF with rule", "2BW-EF with reference")
_LAST_STEP = ("last step with reference",)
_NAG = ("NAG with rule", "NAG with reference")
_ROTATED = ("rotated flushed with rule", "rotated stashing with rule")

MUTATIONS = (
    Mutation(
        "no error is fed back",
        instead(ErrorFeedback, "correct_", lambda _: lambda feedback, before: None),
        _FEEDBACK,
    ),
    Mutation("an error is taken off", instead(ErrorFeedback, "correct_", _other_sign), _FEEDBACK),
    Mutation(
        "the error of corrected steps",
        instead(ErrorFeedback, "correct_", _of_the_corrected_step),
        _FEEDBACK,
    ),
    Mutation(
        "the first update has an error", instead(ErrorFeedback, "forget", _from_nothing), _FEEDBACK
    ),
    Mutation(
        "the reference feeds nothing back",
        instead(StageHistory, "_feed_back_errors", lambda _: lambda *given: None),
        ("2BW-EF with reference",),
    ),
    Mutation(
        "a last step whose rates are all alike",
        instead(LastStep, "move_", _by(lambda step, lead, rates: lead * step._rate)),
        _LAST_STEP,
    ),
    Mutation(
        "a last step backwards",
        instead(LastStep, "move_", _by(lambda step, lead, rates: -rates)),
        _LAST_STEP,
    ),
    Mutation(
        "a last step of one update, however late",
        instead(LastStep, "move_", _by(lambda step, lead, rates: rates / lead)),
        _LAST_STEP,
    ),
    Mutation(
        "a last step from the newest weights",
        instead(LastStep, "after_update", lambda _: LastStep._keep_weights),
        _LAST_STEP,
    ),
    Mutation(
        "the reference's last step without decay",
        instead(StageHistory, "update", _without_decay),
        _LAST_STEP,
    ),
    Mutation(
        "momentum does not grow with the delay",
        instead(deployment, "_optimizer_of", lambda _: lambda optimizer, plan, delay: optimizer),
        _NAG,
    ),
    Mutation(
        "momentum grows by s over the largest s",
        instead(
            deployment,
            "_optimizer_of",
            lambda grown: (
                lambda optimizer, plan, delay: grown(
                    optimizer, plan, delay * (1 + 1 / max(plan.delays))
                )
            ),
        ),
        _NAG,
    ),
    Mutation(
        "momentum grows towards the last stage",
        instead(
            deployment,
            "_optimizer_of",
            lambda grown: (
                lambda optimizer, plan, delay: grown(optimizer, plan, max(plan.delays) - delay)
            ),
        ),
        _NAG,
    ),
    Mutation(
        "the reference's momentum does not grow",
        instead(reference, "with_stage_momentum", lambda _: lambda optimizer, *given: optimizer),
        ("NAG with reference",),
    ),
    Mutation("a basis is turned once", instead(basis_rotation, "_turn_basis", _once), _ROTATED),
    Mutation(
        "squares keep to directions that are sorted",
        instead(basis_rotation, "_turn_basis", _unsorted),
        _ROTATED,
    ),
    Mutation(
        "a step is not turned back", instead(basis_rotation, "_rotated", _never_back), _ROTATED
    ),
    Mutation(
        "rotations the other way", instead(basis_rotation, "_rotated", _the_other_way), _ROTATED
    ),
)
