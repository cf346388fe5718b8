"""Agents of a user's own: objects, algorithms of SB3, and files with hyperparameters."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from stable_baselines3 import PPO

from drlpp.agents import (
    AGENTS,
    DRLPP,
    GuidedHyperparameters,
    Hyperparameters,
    hyperparameters_of,
    learn_placement,
)
from drlpp.envs import CostPrior, MeasurementMemory, PlacementEnv
from drlpp.errors import InvalidFile, InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import FailedMeasurement, Outcome
from drlpp.placement.placement import Placement
from drlpp.planners import Space, Vary
from drlpp.schedule.method import Method
from tests.support.planning.fake_measurer import FakeMeasurer, chain

BACKWARDS, *CUTS = (
    Candidate(Placement.from_assignment(stages, [0, 1]), Method())
    for stages in ([1, 0, 0, 0], [0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1])
)


class InTurn:
    """Proposes what cannot be run, then all cuts of a chain, again and again."""

    told: list[tuple[Candidate, Outcome]]

    def __init__(self, env: PlacementEnv) -> None:
        type(self).told = []
        self.left: list[Sequence[Candidate]] = [[BACKWARDS, CUTS[0]], CUTS[:2], CUTS]

    def propose(self) -> Sequence[Candidate]:
        return self.left.pop(0) if self.left else ()

    def tell(self, candidate: Candidate, outcome: Outcome) -> None:
        self.told.append((candidate, outcome))


class Stubborn(InTurn):
    def propose(self) -> Sequence[Candidate]:
        return CUTS[:1]


def by_ppo(env: PlacementEnv) -> PPO:
    return PPO("MlpPolicy", env, n_steps=8, batch_size=8, n_epochs=1, seed=0)


def no_agent(env: PlacementEnv) -> object:
    return object()


def failing(env: PlacementEnv) -> object:
    return {}["depth"]


class Careless(InTurn):
    def propose(self) -> Any:
        return [CUTS[0].placement]


class Single(InTurn):
    def propose(self) -> Any:
        return CUTS[0]


def learn(
    name: str, out: Path, budget: int = 10, declared: CostPrior | None = None
) -> MeasurementMemory:
    agent = f"{__name__}:{name}" if name in globals() else name
    memory = MeasurementMemory(FakeMeasurer(chain(4), 2), path=out / "measurements.jsonl")
    options: dict[str, Any] = {"seed": 3, "console": Console(quiet=True), "declared": declared}
    hyperparameters = hyperparameters_of(agent)
    assert learn_placement(memory, out, hyperparameters=hyperparameters, budget=budget, **options)
    return memory


def test_it_is_asked_and_told_until_it_proposes_nothing(tmp_path: Path) -> None:
    memory = learn("InTurn", tmp_path)
    assert list(memory.outcomes) == [candidate.canonical for candidate in CUTS]
    assert [candidate for candidate, _ in InTurn.told] == [BACKWARDS, *CUTS[:1], *CUTS[:2], *CUTS]
    failed = InTurn.told[0][1]
    assert isinstance(failed, FailedMeasurement)
    assert failed.failure == "invalid placement"
    # A later run tells first what is known, and keeps to its budget.
    assert learn("InTurn", tmp_path, budget=3).distinct == 3
    assert [candidate.canonical for candidate, _ in InTurn.told] == list(memory.outcomes)
    (tmp_path / "measurements.jsonl").unlink()
    assert learn("InTurn", tmp_path, budget=2).distinct == 2


def test_it_is_left_when_it_asks_for_what_it_knows(tmp_path: Path) -> None:
    assert learn("Stubborn", tmp_path).distinct == 1
    assert len(Stubborn.told) == 501


def test_an_algorithm_of_stable_baselines3_is_saved_and_goes_on(tmp_path: Path) -> None:
    assert learn("by_ppo", tmp_path, budget=2).distinct == 2
    assert (tmp_path / "agent.zip").exists()
    assert list(tmp_path.glob("tensorboard/*/events*"))
    assert learn("by_ppo", tmp_path, budget=3).distinct == 3
    problem = CostPrior.from_sizes(chain(4), 2).problem
    declared = CostPrior(problem, Space(Method(), frozenset({Vary.DEPTH})))
    with pytest.raises(InvalidInput, match="leave out --vary and --objective"):
        learn("by_ppo", tmp_path, declared=declared)


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ("nobody", "there are drl-pp, guided, or give"),
        (f"{__name__}:nothing", "has no function 'nothing'"),
        ("no_agent", r"expected an object with propose\(\) and"),
        ("failing", "called with the environment it raised KeyError: 'depth'"),
        ("Careless", "proposed .* expected a list of Candidates"),
        ("Single", "proposed .* expected a list of Candidates"),
    ],
)
def test_what_is_no_agent_is_refused(agent: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=message):
        learn(agent, tmp_path)


ROOT = Path(__file__).parents[2]
HEADER = "kind: hyperparameters\nversion: 1\n"


def test_the_paper_is_the_default() -> None:
    assert AGENTS["drl-pp"] == Hyperparameters()
    defaults = {
        name: parameter.default for name, parameter in inspect.signature(DRLPP).parameters.items()
    }
    shared = AGENTS["drl-pp"].model_dump(exclude={"temperature", "feasible"})
    assert shared == {name: defaults[name] for name in shared}


def test_a_file_of_ones_own_names_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"{HEADER}learning_rate: 5.0e-4\ntemperature: 2.5\nfeasible: true\n")
    mine = hyperparameters_of(str(path))
    assert mine == Hyperparameters(learning_rate=5e-4, temperature=2.5, feasible=True)
    guided = tmp_path / "guided.yaml"
    guided.write_text("kind: guided-hyperparameters\nversion: 1\ndraws: 4\n")
    assert hyperparameters_of(str(guided)) == GuidedHyperparameters(draws=4)
    env = PlacementEnv(MeasurementMemory(FakeMeasurer(chain(5), 2)))
    agent = mine.build(env, seed=0)
    assert agent.learning_rate == 5e-4
    assert agent.policy.scheduler.feasible
    assert agent.policy.partitioner.temperature.item() == 2.5


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            f"{HEADER}learning_rat: 0.1\n",
            "field 'learning_rat' is unknown; a hyperparameters file has the fields learning_rate,",
        ),
        (f"{HEADER}n_epochs: 0\n", "field 'n_epochs': Input should be greater than or equal to 1"),
        (
            "kind: guided-hyperparameters\nversion: 1\npractice: true\n",
            "field 'practice' is unknown; a guided-hyperparameters file has the fields proposals,",
        ),
        ("kind: cluster\nversion: 1\n", "expected a hyperparameters file, but it is a cluster"),
    ],
)
def test_a_wrong_file_is_refused_by_name_and_field(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(InvalidFile) as caught:
        hyperparameters_of(str(path))
    assert str(path) in str(caught.value)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
