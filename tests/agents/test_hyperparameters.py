"""Hyperparameters are read from YAML files, shipped ones and a user's own."""

import inspect
from importlib import resources
from pathlib import Path

import pytest
import yaml

from drlpp.agents import (
    AGENTS,
    DRLPP,
    GuidedHyperparameters,
    Hyperparameters,
    hyperparameters_of,
)
from drlpp.envs import MeasurementMemory, PlacementEnv
from drlpp.errors import InvalidFile
from tests.support.planning.fake_measurer import FakeMeasurer, chain

ROOT = Path(__file__).parents[2]
HEADER = "kind: hyperparameters\nversion: 1\n"


def test_the_paper_is_the_default() -> None:
    assert AGENTS["drl-pp"] == Hyperparameters()
    defaults = {
        name: parameter.default for name, parameter in inspect.signature(DRLPP).parameters.items()
    }
    shared = AGENTS["drl-pp"].model_dump(exclude={"temperature", "feasible"})
    assert shared == {name: defaults[name] for name in shared}


@pytest.mark.parametrize("agent", AGENTS)
def test_a_shipped_file_names_and_explains_every_field(agent: str) -> None:
    text = (resources.files("drlpp.agents") / "hyperparameters" / f"{agent}.yaml").read_text()
    assert set(yaml.safe_load(text)) == {"kind", "version", *type(AGENTS[agent]).model_fields}
    # A field, or the group that it stands in, follows a comment.
    groups = text.split("\n\n")[1:]
    assert all(group.startswith("# ") for group in groups)


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
        (f"{HEADER}temperature: warm\n", "field 'temperature"),
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
