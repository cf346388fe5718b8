"""The last applied step."""

from typing import Any

import torch

from drlpp.runtime.weights.displacements import LastStep
from tests.support.mutations.mutation import Mutations

_LAST_STEP = ("last step with reference",)

MUTATIONS = Mutations()
_row = MUTATIONS.row

_row("a last step whose rates are all alike", _LAST_STEP, LastStep, "_move")(
    lambda move: lambda step, lead, rates: move(step, lead, lead * step._rate)
)
_row("a last step backwards", _LAST_STEP, LastStep, "_move")(
    lambda move: lambda step, lead, rates: move(step, lead, -rates)
)
_row("a last step of one update, however late", _LAST_STEP, LastStep, "_move")(
    lambda move: lambda step, lead, rates: move(step, lead, rates / lead)
)


@_row("a last step from the newest weights", _LAST_STEP, LastStep, "_step")
def _(step: Any) -> Any:
    @torch.no_grad()
    def broken(policy: LastStep, *, skipped: bool) -> None:
        step(policy, skipped=skipped)
        policy._keep_weights()

    return broken
