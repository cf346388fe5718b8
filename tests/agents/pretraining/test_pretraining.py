"""Pre-training draws solvable problems, and both of its stages learn."""

from pathlib import Path
from random import Random

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from drlpp.agents.pretraining.imitation import imitation_loss
from drlpp.agents.pretraining.problems import (
    ProblemStream,
    SolvedProblem,
    with_latest_cuts,
)
from drlpp.agents.pretraining.training import evaluate_rollout, sample_rollout
from drlpp.agents.transfer.transfer_policy import TransferNetwork
from drlpp.agents.transfer.weights import load_weights
from drlpp.cli.learning.pretrain import app
from drlpp.planners import PlanningProblem
from drlpp.planners.problem import AnalyticObjective
from drlpp.planners.search.moves import random_placement
from tests.support.planning.transfer_contexts import problems


@pytest.fixture(scope="module")
def solved() -> list[SolvedProblem]:
    stream = ProblemStream(Random(0), operators=(6, 12), accelerators=(2, 3))
    return [stream.new() for _ in range(8)]


def test_problems_are_those_of_the_training_families(solved: list[SolvedProblem]) -> None:
    for each in solved:
        assert 6 <= len(each.context) <= 12
        assert 2 <= each.context.accelerators <= 3
        assert each.optimum_ideals >= 1 - 1e-9
        assert each.objective(each.imitated) >= each.optimum_seconds * (1 - 1e-9)
        assert each.imitated.accelerators == tuple(range(each.context.accelerators))


@settings(max_examples=30)
@given(problem=problems(), seed=st.integers(0, 9))
def test_latest_cuts_are_as_fast_and_valid(problem: PlanningProblem, seed: int) -> None:
    objective = AnalyticObjective(problem)
    placement = random_placement(problem, Random(seed))
    later = with_latest_cuts(placement, problem.workload, objective)
    assert objective(later) <= objective(placement) * (1 + 1e-9)
    assert len(later.stages) == len(placement.stages)
    count = len(problem.workload)
    before, after = placement.stage_of_operator(count), later.stage_of_operator(count)
    assert all(new <= old for new, old in zip(after, before, strict=True))
    assert all(after[a] <= after[b] for a, b in problem.workload.edges)


def test_imitation_lowers_the_loss(solved: list[SolvedProblem]) -> None:
    torch.manual_seed(0)
    network, draw = TransferNetwork(), Random(0)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    losses = []
    for _ in range(30):
        loss = imitation_loss(network, solved, draw)
        losses.append(loss.total.item())
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
    assert numpy.mean(losses[-3:]) < 0.7 * losses[0]


def test_reinforcement_makes_fast_placements_likelier(solved: list[SolvedProblem]) -> None:
    torch.manual_seed(0)
    network = TransferNetwork()
    rollout = sample_rollout(network, solved, placements=6)
    assert rollout.gaps.min() >= -1e-9
    by_problem = rollout.advantages.reshape(len(solved), 6)
    assert by_problem.mean(axis=1) == pytest.approx(0.0, abs=1e-9)
    assert (numpy.argmax(by_problem, axis=1) == rollout.gaps.reshape(-1, 6).argmin(axis=1)).all()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    updates = []
    for _ in range(12):
        update = evaluate_rollout(network, rollout, clip_range=0.2)
        updates.append(update)
        optimizer.zero_grad()
        update.policy_gradient_loss.backward()
        optimizer.step()
    # The policy that sampled: all ratios are 1.
    assert updates[0].approx_kl == pytest.approx(0.0, abs=1e-5)
    before, after = (updates[i].policy_gradient_loss.item() for i in (0, -1))
    assert after < before - 0.02


@pytest.mark.slow
def test_the_command_writes_weights_with_their_origin(tmp_path: Path) -> None:
    out = tmp_path / "weights.safetensors"
    result = CliRunner().invoke(app, ["--out", str(out), "--minutes", "0", "--seed", "5"])
    assert result.exit_code == 0, result.output
    notes = load_weights(TransferNetwork(), out)
    assert notes["seed"] == "5"
    assert "--minutes 0 --seed 5" in notes["command"]
