"""Budgets are kept, and a checkpoint is whole at any moment."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from drlpp.agents import (
    AGENTS,
    DRLPP,
    AtomicCheckpointCallback,
    BestPlacementCallback,
    MeasurementBudgetCallback,
)
from drlpp.envs import MeasurementMemory, PlacementEnv
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement
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


def test_what_cannot_run_does_not_count_as_settling() -> None:
    memory = MeasurementMemory(FakeMeasurer(chain(10), 4))
    agent = AGENTS["drl-pp"].build(PlacementEnv(memory), seed=0)
    callback = MeasurementBudgetCallback(memory, budget=10_000, patience=6)
    asked = []
    agent.learn(10_000, callback=[Asked(asked), callback])
    assert asked[-6:] == [asked[-1]] * 6
    assert agent.num_timesteps > len(asked)


class Asked(BaseCallback):
    """Counts distinct placements after every step that asked for one that can run."""

    def __init__(self, distinct: list[int]) -> None:
        super().__init__()
        self.distinct = distinct

    def _on_step(self) -> bool:
        (info,) = self.locals["infos"]
        if "seconds" in info:
            self.distinct.append(self.training_env.get_attr("summary")[0].distinct)
        return True


def test_the_best_placement_is_drawn_when_it_changes() -> None:
    agent, memory = agent_and_memory()
    drawn: list[float] = []

    def draw(candidate: Candidate, measurement: Measurement) -> Figure:
        drawn.append(measurement.seconds_per_minibatch)
        return Figure()

    agent.set_logger(Logger(None, []))
    agent.learn(64, callback=BestPlacementCallback(memory, draw))
    best = memory.best()
    assert best is not None
    assert drawn == sorted(set(drawn), reverse=True)
    assert drawn[-1] == best[1].seconds_per_minibatch


def test_a_checkpoint_holds_the_last_update(tmp_path: Path) -> None:
    agent, memory = agent_and_memory()
    path = tmp_path / "run" / "model.zip"
    agent.learn(24, callback=AtomicCheckpointCallback(path))
    loaded = DRLPP.load(path, PlacementEnv(memory))
    assert loaded.num_timesteps == 24
    assert loaded._n_updates == agent._n_updates
    assert [file.name for file in path.parent.iterdir()] == ["model.zip"]


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
