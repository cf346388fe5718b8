"""Files of weights are small, are read back, and are refused where they do not fit."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from drlpp.agents import PRETRAINED
from drlpp.agents.pretraining.problems import SolvedProblem, placement_of
from drlpp.agents.transfer.context import ContextBatch
from drlpp.agents.transfer.transfer_policy import TransferNetwork
from drlpp.agents.transfer.weights import load_weights, save_weights
from drlpp.errors import InvalidFile
from tests.support.planning.transfer_contexts import context_of, problem_of


def test_weights_come_back(tmp_path: Path) -> None:
    network, other = nn.Linear(3, 2), nn.Linear(3, 2)
    save_weights(network, tmp_path / "w.safetensors", {"command": "made by hand"})
    assert load_weights(other, tmp_path / "w.safetensors") == {"command": "made by hand"}
    assert torch.equal(network.weight, other.weight)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    weight, bias = torch.zeros(2, 3), torch.zeros(2)
    for tensors, words in (
        ({"weight": torch.zeros(2, 4), "bias": bias}, r"'weight' are \(2, 4\).*\(2, 3\)"),
        ({"weight": weight.long(), "bias": bias}, r"'weight' are .*int64, but .*float32"),
        ({"weight": weight, "bias": bias, "more": bias.clone()}, "no weights 'more'"),
        ({"weight": weight}, "'bias' are missing"),
    ):
        save_file(tensors, path)
        with pytest.raises(InvalidFile, match=words):
            load_weights(nn.Linear(3, 2), path)
    path.write_text("nothing of the kind")
    with pytest.raises(InvalidFile, match="not a file of weights"):
        load_weights(nn.Linear(3, 2), path)
    with pytest.raises(InvalidFile, match="no such file"):
        load_weights(nn.Linear(3, 2), tmp_path / "other.safetensors")


def test_the_shipped_weights_place_a_model_of_a_held_out_family() -> None:
    assert PRETRAINED.stat().st_size < 5e6
    network = TransferNetwork()
    assert "drlpp.agents.pretraining" in load_weights(network, PRETRAINED)["command"]
    # Accelerators of a new cluster are told apart by their features alone.
    assert not network.scheduler.embeddings.weight.any()
    gaps = []
    for seed in range(8):
        solved = SolvedProblem.solve("blocks", problem_of("blocks", 16, 3, seed=seed))
        batch = ContextBatch.of([context_of(solved.problem)])
        trajectory = network.sample(batch, [0], deterministic=True)[0]
        placement = placement_of(trajectory)
        assert placement.accelerators == (0, 1, 2)
        gaps.append(solved.gap(trajectory))
    # Far below what chance gives; how good it is, docs/agent.md says.
    assert sorted(gaps)[len(gaps) // 2] < 0.2


def test_the_shipped_weights_draw_what_they_always_drew() -> None:
    """What the features are that the weights were trained on, only the weights know."""
    network = TransferNetwork()
    load_weights(network, PRETRAINED)
    problems = [problem_of("towers", 12, 4, [1, 1, 0.5, 0.5]), problem_of("layered", 16, 3)]
    batch = ContextBatch.of([context_of(problem) for problem in problems])
    torch.manual_seed(5)
    found = network.sample(batch, [0, 0, 0, 1, 1, 1])[:4]
    held = [trajectory.stage_of_accelerator for trajectory in found]
    assert held == [(0, 0, 1, 1), (0, 0, 1, 1), (1, 2, 0, 0), (0, 0, 0)]
    walked, placed = zip(*((sum(t.walk.log_probs), sum(t.log_probs)) for t in found), strict=True)
    assert walked == pytest.approx([-8.469379, -6.889804, -14.362404, -9.117752], rel=1e-4)
    assert placed == pytest.approx([-0.00133937, -0.0847184, -1.201936, 0.0], rel=1e-3, abs=1e-6)
