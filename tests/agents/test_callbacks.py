"""Budgets are kept, and a checkpoint is whole at any moment."""

from pathlib import Path
from typing import Any

import pytest

from drlpp.agents import (
    AGENTS,
    DRLPP,
    AtomicCheckpointCallback,
    MeasurementBudgetCallback,
)
from drlpp.envs import MeasurementMemory, PlacementEnv
from tests.support.planning.fake_measurer import FakeMeasurer, chain


def agent_and_memory(
    operators: int = 10, accelerators: int = 4, path: Path | None = None
) -> tuple[DRLPP, MeasurementMemory]:
    memory = MeasurementMemory(FakeMeasurer(chain(operators), accelerators), path=path)
    return AGENTS["tuned"].build(PlacementEnv(memory), seed=0), memory


def test_learning_stops_when_the_budget_is_spent(tmp_path: Path) -> None:
    agent, memory = agent_and_memory(path=tmp_path / "memory.jsonl")
    callback = MeasurementBudgetCallback(memory, budget=12)
    assert not callback.exhausted
    agent.learn(10_000, callback=callback)
    assert callback.exhausted
    assert memory.distinct == 12
    resumed, memory = agent_and_memory(path=tmp_path / "memory.jsonl")
    resumed.learn(10_000, callback=MeasurementBudgetCallback(memory, budget=20))
    assert memory.distinct == 20
    assert len(memory.measurer.measured) == 8  # type: ignore[attr-defined]


def test_learning_stops_when_nothing_new_is_asked_for() -> None:
    agent, memory = agent_and_memory(operators=2, accelerators=1)
    agent.learn(10_000, callback=MeasurementBudgetCallback(memory, budget=100, patience=30))
    assert memory.distinct == 1
    assert agent.num_timesteps == 31


def test_a_kill_while_saving_leaves_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, _ = agent_and_memory()
    path = tmp_path / "model.zip"
    agent.learn(8, callback=AtomicCheckpointCallback(path))
    before = path.read_bytes()

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        agent.learn(8, callback=AtomicCheckpointCallback(path), reset_num_timesteps=False)
    assert path.read_bytes() == before
