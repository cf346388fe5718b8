"""One set of weights fits every model and cluster, and what it samples can be replayed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from drlpp.agents import PRETRAINED, TransferPolicy
from drlpp.agents.transfer.context import ContextBatch
from drlpp.agents.transfer.transfer_policy import TransferNetwork
from drlpp.agents.transfer.weights import load_weights
from drlpp.costs.synthetic_profiles import generate
from drlpp.errors import InvalidFile, InvalidInput
from drlpp.placement.placement import Placement
from drlpp.planners import PlanningProblem
from drlpp.planners.problem import AnalyticObjective
from tests.support.planning.transfer_contexts import context_of, problem_of, problems


def lively_network() -> TransferNetwork:
    """Untrained, but with scores that differ."""
    torch.manual_seed(0)
    network = TransferNetwork()
    for name, parameter in network.named_parameters():
        if parameter.shape[0] == 1 or name.endswith("embeddings.weight"):
            torch.nn.init.normal_(parameter, std=0.3)
    return network


NETWORK = lively_network()


def policy_of(
    family: str = "layered", operators: int = 12, accelerators: int = 3, **options: Any
) -> TransferPolicy:
    profile = generate(family, operators, seed=0)
    context = context_of(problem_of(family, operators, accelerators))
    return TransferPolicy(
        spaces.Box(0, 1, (1,)),
        spaces.MultiDiscrete([accelerators] * (operators + accelerators)),
        lambda _: 1e-3,
        graph=profile.graph,
        context=context,
        **options,
    )


@settings(max_examples=15)
@given(found=st.lists(problems(), min_size=1, max_size=3), seed=st.integers(0, 99))
def test_replay_equals_sampling_on_several_problems_at_once(
    found: list[PlanningProblem], seed: int
) -> None:
    torch.manual_seed(seed)
    batch = ContextBatch.of([context_of(problem) for problem in found])
    contexts = [index for index in range(len(found)) for _ in range(2)]
    trajectories = NETWORK.sample(batch, contexts)
    walks = [trajectory.walk for trajectory in trajectories]
    with torch.no_grad():
        evaluation = NETWORK.evaluate(batch, contexts, walks, contexts, trajectories)
    sampled = [log_prob for walk in walks for log_prob in walk.free_log_probs]
    assert evaluation.partitioner_log_probs.tolist() == pytest.approx(sampled, abs=1e-4)
    most = evaluation.scheduler_free.shape[1]
    padded = torch.tensor([t.log_probs + (0.0,) * (most - len(t.log_probs)) for t in trajectories])
    expected = padded[evaluation.scheduler_free].tolist()
    assert evaluation.scheduler_log_probs.tolist() == pytest.approx(expected, abs=1e-4)
    # Choices without an alternative are certain, and not counted.
    certain = padded[~evaluation.scheduler_free]
    assert certain.abs().max().item() < 1e-5 if certain.numel() else True


@settings(max_examples=25)
@given(problem=problems(), deterministic=st.booleans())
def test_samples_are_valid_placements(problem: PlanningProblem, deterministic: bool) -> None:
    batch = ContextBatch.of([context_of(problem)])
    for trajectory in NETWORK.sample(batch, [0, 0], deterministic):
        stages = trajectory.walk.stage_of_operator
        held = trajectory.stage_of_accelerator
        assert set(stages) == set(held) == set(range(trajectory.walk.stages))
        assert all(stages[a] <= stages[b] for a, b in problem.workload.edges)
        placement = Placement.from_assignment(stages, held)
        assert AnalyticObjective(problem)(placement) > 0


def test_every_weight_of_the_policy_learns_and_the_estimator_does_not() -> None:
    policy = policy_of(operators=14, accelerators=4)
    policy.network.load_state_dict(NETWORK.state_dict())
    trajectories = policy.sample(8)
    evaluation = policy.evaluate([t.walk for t in trajectories], trajectories)
    (evaluation.partitioner_log_probs.sum() + evaluation.scheduler_log_probs.sum()).backward()
    for name, parameter in policy.network.named_parameters():
        if name.startswith("estimator"):
            assert parameter.grad is None, name
        else:
            assert parameter.grad is not None, name
            assert parameter.grad.any(), name


def test_wrong_contexts_are_refused() -> None:
    policy = policy_of("chain", 9, 2)
    with pytest.raises(InvalidInput, match="10 operators on 2"):
        policy.set_context(context_of(problem_of("chain", 10, 2)))


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    weight, bias = torch.zeros(2, 3), torch.zeros(2)
    for tensors, words in (
        ({"weight": torch.zeros(2, 4), "bias": bias}, r"weight: .*\[2, 4\].* train the policy"),
        ({"weight": weight, "bias": bias, "more": bias.clone()}, 'Unexpected .*"more"'),
        ({"weight": weight}, 'Missing .*"bias"'),
        ({"weight": weight.half(), "bias": bias}, "'weight' are of torch.float16, but"),
    ):
        save_file(tensors, path)
        with pytest.raises(InvalidFile, match=words):
            load_weights(nn.Linear(3, 2), path)
    path.write_text("nothing of the kind")
    with pytest.raises(InvalidFile, match="not a file of weights"):
        load_weights(nn.Linear(3, 2), path)
    with pytest.raises(InvalidFile, match="no such file"):
        load_weights(nn.Linear(3, 2), tmp_path / "other.safetensors")


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
