"""A plan as plain data for scripts."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from drlpp.planners.best_simulated import Choice, Proposal
from drlpp.planners.plan import Plan
from drlpp.planners.shared_weights import Sharing
from drlpp.simulator import Depth


def plan_record(
    plan: Plan,
    proposal: Proposal | None = None,
    choice: Choice | None = None,
    sharing: Sharing | None = None,
    faster: Proposal | None = None,
) -> dict[str, Any]:
    """Return a plan as plain data, with what the simulator says of it, and what it was chosen from.

    ``sharing`` is what was compared with it, if its model has weights that stages can share;
    ``faster`` is what takes no planner and is faster, if that was looked for.

    ``seconds_per_minibatch`` is by ``rule``, what the method minimises, which for PipeDream's is a
    formula of its own; ``predicted_seconds_per_minibatch`` by that of the problem for every method,
    which is a bound. ``simulated_seconds_per_minibatch`` is null for what cannot be played;
    ``error_bar`` is how far off it may be, as a share of it, and null where no short runs tell it.
    """
    prediction, solution = plan.prediction, plan.solution
    names = plan.problem.workload.names
    return {
        "method": plan.method,
        "simulated_seconds_per_minibatch": None
        if proposal is None
        else proposal.seconds_per_minibatch,
        "error_bar": plan.error_bar or None,
        "steadiness": None if proposal is None else proposal.depth.steadiness,
        "seconds_per_minibatch": prediction.seconds_per_minibatch
        if solution.own_seconds is None
        else solution.own_seconds,
        "rule": plan.problem.costs if solution.own_seconds is None else solution.note,
        "predicted_seconds_per_minibatch": prediction.seconds_per_minibatch,
        "configuration": plan.placement.configuration,
        "bottleneck": prediction.bottleneck,
        "planner_seconds": plan.planner_seconds,
        "proven_optimal": solution.proven_optimal,
        "lower_bound": solution.lower_bound if choice is None else choice.lower_bound,
        "missing_bytes": prediction.missing_bytes,
        "note": solution.note,
        "in_flight_per_link": plan.problem.memory.in_flight_per_link,
        "depths": [asdict(depth) for depth in compared_depths(proposal)],
        "faster_without_planner": None if faster is None else _proposal_record(faster),
        "others": [_proposal_record(other) for other in (choice.others if choice else ())],
        **_sharing_record(sharing),
        "stages": [
            {
                "operators": [names[operator] for operator in stage.operators],
                **predicted.model_dump(),
            }
            for stage, predicted in zip(plan.placement.stages, prediction.stages, strict=True)
        ],
    }


def _proposal_record(proposal: Proposal) -> dict[str, Any]:
    return {
        "method": proposal.plan.method,
        "configuration": proposal.plan.placement.configuration,
        "in_flight_per_link": proposal.depth.per_link,
        "simulated_seconds_per_minibatch": proposal.seconds_per_minibatch,
        "error_bar": proposal.plan.error_bar or None,
    }


def _sharing_record(sharing: Sharing | None) -> dict[str, Any]:
    if sharing is None:
        return {}
    other = sharing.other
    return {
        "shared_weights": [asdict(shared) for shared in sharing.shared],
        "other_sharing": None
        if other is None
        else {
            "configuration": other.placement.configuration,
            "simulated_seconds_per_minibatch": _finite(sharing.other_seconds),
            "error_bar": other.error_bar or None,
        },
    }


def _finite(seconds: float) -> float | None:
    return seconds if 0 < seconds < math.inf else None


def compared_depths(proposal: Proposal | None) -> tuple[Depth, ...]:
    """Return the depths that one was chosen from."""
    return proposal.depths if proposal is not None and len(proposal.depths) > 1 else ()
