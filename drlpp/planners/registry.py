"""The planners by name."""

from __future__ import annotations

from drlpp.planners.exact.exact import exact
from drlpp.planners.exact.incumbents import FORMULAS, Planner

__all__ = ["Planner", "PLANNERS", "BASELINES", "FOLDING"]

PLANNERS: dict[str, Planner] = {
    **FORMULAS,
    "exact": exact,
}
"""The planners as the command line names them."""

FOLDING = ("gpipe",)
"""The planners that can give every accelerator two stages, where a schedule needs that."""

BASELINES = ("data-parallel", "gpipe", "pipedream", "exact")
"""The planners that a learned placement is measured against."""
