"""An agent goes on from a run's ``agent.zip``, whose pickles call nothing but its parts."""

from __future__ import annotations

import base64
import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import pytest
import torch
from rich.console import Console

from drlpp.agents import AGENTS, learn_placement
from drlpp.agents.saved_agent import _PARTS, _Unpickler, load_agent
from drlpp.envs import MeasurementMemory, PlacementEnv
from drlpp.errors import InvalidFile
from tests.support.planning.fake_measurer import FakeMeasurer, branching


def environment() -> PlacementEnv:
    return PlacementEnv(MeasurementMemory(FakeMeasurer(branching(8))))


@pytest.fixture(params=["drl-pp-mended", "guided-policy"], scope="module")
def saved(request: pytest.FixtureRequest) -> tuple[str, bytes]:
    """The name of an agent, and what it saved after some learning."""
    guided = request.param.startswith("guided")
    few = {"draws": 2, "evaluations": 16} if guided else {}
    agent = AGENTS[request.param].model_copy(update=few).build(environment(), seed=0)
    agent.learn(4 if guided else 16)
    assert not guided or bool(agent._elites) == (request.param == "guided-policy")
    content = io.BytesIO()
    agent.save(content)
    return request.param, content.getvalue()


def test_everything_of_an_agent_is_loaded(saved: tuple[str, bytes], tmp_path: Path) -> None:
    name, content = saved
    (tmp_path / "agent.zip").write_bytes(content)
    algorithm = AGENTS[name].algorithm
    saved_to, events = tmp_path / "agent.zip", str(tmp_path)
    found = load_agent(algorithm, saved_to, environment(), tensorboard_log=events)
    wanted = algorithm.load(io.BytesIO(content), env=environment())
    for key, value in wanted.policy.state_dict().items():
        assert torch.equal(found.policy.state_dict()[key], value), key
    # Also what stable-baselines3 has as pickles, compared by what it would write.
    differing = {"start_time", "tensorboard_log"}
    assert _data(found).keys() == _data(wanted).keys()
    for key, value in _data(wanted).items():
        if key not in differing and not isinstance(value, dict):
            assert _data(found)[key] == value, key
    assert [e.reward for e in found._elites] == [e.reward for e in wanted._elites]
    assert found.tensorboard_log == events
    again = found.learn(4, reset_num_timesteps=False)
    assert again.num_timesteps > wanted.num_timesteps


def _data(agent: object) -> dict[str, object]:
    content = io.BytesIO()
    agent.save(content)  # type: ignore[attr-defined]
    with zipfile.ZipFile(content) as archive:
        found: dict[str, object] = json.loads(archive.read("data"))
    return found


class _Calls:
    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


def _torch_file() -> bytes:
    content = io.BytesIO()
    torch.save(_Calls(os.system, "touch trapped"), content)
    return content.getvalue()


@pytest.mark.parametrize(
    "hostile",
    [
        lambda: _Calls(os.system, "touch trapped"),
        lambda: _Calls(eval, "open('trapped', 'w')"),
        lambda: _Calls(torch.storage._load_from_bytes, _torch_file()),
        lambda: _Calls(getattr, os, "system"),
    ],
)
@pytest.mark.parametrize("key", ["policy_class", "anything"])
def test_a_strangers_agent_runs_nothing(
    saved: tuple[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    hostile: Callable[[], object],
    key: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    name, content = saved
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        files = {file: archive.read(file) for file in archive.namelist()}
    data = json.loads(files["data"])
    serialized = base64.b64encode(cloudpickle.dumps(hostile())).decode()
    data[key] = {":type:": "x", ":serialized:": serialized}
    files["data"] = json.dumps(data).encode()
    with zipfile.ZipFile("agent.zip", "w") as archive:
        for file, value in files.items():
            archive.writestr(file, value)
    with pytest.raises(InvalidFile, match=r"not a saved agent .* delete it"):
        learn_placement(
            MeasurementMemory(FakeMeasurer(branching(8))),
            tmp_path,
            hyperparameters=AGENTS[name],
            budget=5,
            seed=0,
            console=Console(quiet=True),
        )
    assert not Path("trapped").exists()


@pytest.mark.parametrize(
    ("now", "before"),
    [
        ("drlpp.capturing.graph", "drlpp.graph"),
        ("drlpp.agents.paper.walk", "drlpp.agents.walk"),
        ("drlpp.agents.transfer.context", "drlpp.agents.context"),
        ("drlpp.agents.transfer.walk_record", "drlpp.agents.walk_record"),
        ("drlpp.planners.calibration.recalibration", "drlpp.planners.recalibration"),
        ("drlpp.planners.calibration.recalibration", "drlpp.planners.model_based.options"),
    ],
)
def test_parts_are_found_where_they_have_moved_to(now: str, before: str) -> None:
    for name in _PARTS[now]:
        assert _Unpickler(io.BytesIO()).find_class(before, name).__module__ == now
