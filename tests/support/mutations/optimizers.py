"""The last applied step, a rotated basis."""

from typing import Any

from drlpp.runtime.weights.displacements import LastStep
from drlpp.specs import basis_rotation
from tests.support.mutations.mutation import Mutations

_LAST_STEP = ("last step with reference",)
_ROTATED = ("rotated flushed with rule", "rotated stashing with rule")

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
_row("a last step from the newest weights", _LAST_STEP, LastStep, "_after_step")(
    lambda _: LastStep._keep_weights
)


_row("a basis is turned once", _ROTATED, basis_rotation, "_turn_basis")(
    lambda turn: lambda state, side: None if f"basis_{side}" in state else turn(state, side)
)


@_row("squares keep to directions that are sorted", _ROTATED, basis_rotation, "_turn_basis")
def _(turn: Any) -> Any:
    def turned(state: dict[str, Any], side: int) -> None:
        squares = state["exp_avg_sq"]
        turn(state, side)
        state["exp_avg_sq"] = squares

    return turned


_row("a step is not turned back", _ROTATED, basis_rotation, "_rotated")(
    lambda rotated: lambda matrix, state, *, back=False: matrix if back else rotated(matrix, state)
)
_row("rotations the other way", _ROTATED, basis_rotation, "_rotated")(
    lambda rotated: lambda matrix, state, *, back=False: rotated(matrix, state, back=not back)
)
