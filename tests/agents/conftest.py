"""Agents of tests learn on the same few problems: what planners propose for each is found once."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from drlpp.planners import PlanningProblem, Space
from drlpp.planners.best_searched import planned_in
from drlpp.planners.best_simulated import Choice


@pytest.fixture(scope="session", autouse=True)
def _planned_once() -> Iterator[None]:
    known: dict[bytes, Choice] = {}

    def planned(space: Space, problem: PlanningProblem) -> Choice:
        key = pickle.dumps((space, problem))
        if key not in known:
            known[key] = planned_in(space, problem)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("drlpp.planners.model_based.recalibration.planned_in", planned)
        patch.setattr("drlpp.envs.cost_prior.planned_in", planned)
        yield
