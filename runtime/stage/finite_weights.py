"""The check that training has left weights finite, before they are saved."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from drlpp.errors import NotFinite


def check_finite(state: Mapping[str, Tensor], initial: Mapping[str, Tensor]) -> None:
    """Check that training has left weights and buffers finite that were so at its beginning.

    A buffer may hold infinite values on purpose, such as a mask.

    Raises:
        NotFinite: naming the first that is not.
    """
    for name, value in state.items():
        if not value.isfinite().all() and initial[name].isfinite().all():
            raise NotFinite(f"{name} has values that are not finite")
