"""What is drawn is what was logged."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.reward_curves import comparing, runs
from benchmarks.reward_curves import drawing as reward_curves
from benchmarks.reward_curves import training as training_curve
from benchmarks.reward_curves.__main__ import app
from drlpp.agents import AGENTS
from drlpp.costs.profile import Profile
from drlpp.envs import MeasurementMemory, PlacementEnv
from drlpp.errors import InvalidInput
from drlpp.io.documents import read_document
from drlpp.models.zoo import ZOO
from drlpp.simulator import SimulatedCluster
from drlpp.specs.cluster import Link, local_cluster

PROFILES = sorted(training_curve.PROFILES.glob("*.json"))


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_profiles_are_of_the_zoo(path: Path) -> None:
    assert path.stem in ZOO
    profile = read_document(path, Profile)
    assert profile.graph.model.startswith(f"{path.stem}(")
    assert len(profile.operators) == len(profile.graph)


def test_curves_are_those_of_the_run(tmp_path: Path) -> None:
    profile = read_document(training_curve.PROFILES / "alexnet.json", Profile)
    cluster = local_cluster(2, Link(bandwidth_bytes_per_second=1e8))
    memory = MeasurementMemory(SimulatedCluster(profile, cluster))
    agent = AGENTS["tuned"].build(PlacementEnv(memory), seed=0, tensorboard_log=str(tmp_path))
    agent.learn(10_000, callback=training_curve.TrainingSteps(3))
    curves = reward_curves.read_curves(tmp_path, "tuned")
    assert len(curves.distinct) == 3
    assert agent._n_updates == 3 * AGENTS["tuned"].n_epochs
    best = memory.best()
    assert best is not None
    assert curves.best_seconds[-1] == pytest.approx(best[1].seconds_per_minibatch)
    # Reading gives single precision; the last step measured nothing slower than the best.
    assert np.all(curves.mean_reward <= -np.log(curves.best_seconds) + 1e-6)
    # The first update has no baseline before it.
    assert np.isnan(curves.baseline[0])
    assert np.isfinite(curves.baseline[1:]).all()


@pytest.mark.parametrize("vary", ["none", "depth"])
def test_a_picture_and_a_table_come_out(tmp_path: Path, vary: str) -> None:
    options = {
        "--profile": training_curve.PROFILES / "alexnet.json",
        "--steps": 2,
        "--accelerators": 2,
        "--vary": vary,
        "--out": tmp_path / "log",
        "--picture": tmp_path / "deep" / "curve.png",
    }
    arguments = [str(word) for option in options.items() for word in option]
    done = CliRunner().invoke(app, ["train", *arguments])
    assert done.exit_code == 0, done.output
    assert "2 training steps" in " ".join(done.output.split())
    assert "best found" in done.output
    assert (tmp_path / "deep" / "curve.png").read_bytes().startswith(b"\x89PNG")
    both = tmp_path / "both.png"
    log = tmp_path / "log"
    done = CliRunner().invoke(app, ["draw", f"one={log}", f"two={log}", "--picture", str(both)])
    assert done.exit_code == 0, done.output
    assert both.exists()


def test_agents_are_compared_and_runs_are_kept(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{comparing.BEGIN}\n{comparing.END}\nafter\n")
    options = {
        "--results": tmp_path / "deep" / "curves.jsonl",
        "--models": "vgg16",
        "--agents": "tuned,drl-pp-mended",
        "--seeds": 2,
        "--steps": 2,
        "--picture": tmp_path / "curves.png",
        "--document": page,
    }
    arguments = ["compare", *(str(word) for option in options.items() for word in option)]
    written = []
    for _ in range(2):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
        written.append((tmp_path / "deep" / "curves.jsonl").read_text())
    assert written[0] == written[1]
    assert written[0].count("\n") == 4
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert "| VGG-16, 125 MB/s | drl-pp-mended |" in text
    assert text.startswith("before")
    assert text.endswith("after\n")


def test_a_run_says_what_the_agent_came_to() -> None:
    found = runs.run("vgg16", "tuned", seed=0, steps=3)
    memory = MeasurementMemory(runs.MODELS["vgg16"].measurer())
    agent = AGENTS["tuned"].build(PlacementEnv(memory), seed=0)
    agent.learn(10_000, callback=training_curve.TrainingSteps(3))
    best = memory.best()
    assert best is not None
    assert found.best_seconds == best[1].seconds_per_minibatch
    assert found.distinct == memory.distinct
    assert len(found.draws) == len(found.mean_rewards) == len(found.invalid) == 3
    # The agent of the other run has taken one step into a fourth rollout.
    assert sum(found.draws) in {agent.num_timesteps - 1, agent.num_timesteps}
    rewards = [reward for reward in found.mean_rewards if reward is not None]
    assert found.last_seconds == pytest.approx(float(np.exp(-np.mean(rewards))))


def test_folders_without_one_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="expected one run with TensorBoard's files, found none"):
        reward_curves.read_curves(tmp_path, "nobody")
    done = CliRunner().invoke(app, ["draw", "nobody", "--picture", str(tmp_path / "a.png")])
    assert isinstance(done.exception, InvalidInput)
    assert "give it as AGENT=FOLDER" in str(done.exception)
