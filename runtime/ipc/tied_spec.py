"""What a stage needs to know of weights that other stages hold copies of."""

from __future__ import annotations

from dataclasses import dataclass

from drlpp.specs.optimizer_spec import OptimizerSpec


@dataclass(frozen=True)
class TiedSpec:
    """What a stage needs to know of a tie whose weights it holds, whatever it runs.

    Attributes:
        optimizer: of these weights.
        delay: s of them in steady state.
    """

    optimizer: OptimizerSpec
    delay: int
