"""Agents of tests learn on the same few problems: what planners propose for each is found once."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from drlpp.placement.plan import Plan
from drlpp.planners import PlanningProblem, Space, baseline_plans


@pytest.fixture(scope="session", autouse=True)
def _planned_once() -> Iterator[None]:
    known: dict[bytes, tuple[Plan, ...]] = {}

    def planned(problem: PlanningProblem, space: Space) -> tuple[Plan, ...]:
        key = pickle.dumps((space, problem))
        if key not in known:
            known[key] = baseline_plans(problem, space)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("drlpp.planners.calibration.recalibration.baseline_plans", planned)
        patch.setattr("drlpp.envs.cost_prior.baseline_plans", planned)
        yield
