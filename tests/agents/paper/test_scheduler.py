"""The scheduler's probabilities are exact, with and without the feasibility mask."""

import itertools

import pytest
import torch
from torch import Tensor, nn

from drlpp.agents.paper.scheduler import PipelineScheduler

UNITS = 8
STAGES = torch.tensor([1, 2, 3])


@pytest.fixture
def summaries() -> Tensor:
    return torch.randn(3, 3, UNITS)


def scheduler_of(accelerators: int, feasible: bool) -> PipelineScheduler:
    torch.manual_seed(0)
    scheduler = PipelineScheduler(accelerators, UNITS, feasible)
    for parameter in scheduler.parameters():
        nn.init.normal_(parameter, std=0.7)
    return scheduler


def test_scores_pair_an_accelerator_with_a_partition(summaries: Tensor) -> None:
    scheduler = scheduler_of(4, feasible=False)
    scores = scheduler(summaries, STAGES)
    assert scores.shape == (3, 4, 3)
    pair = torch.cat([scheduler.embeddings.weight[2], summaries[1, 0]])
    assert scores[1, 2, 0].item() == pytest.approx(scheduler.pair_score(pair).item(), abs=1e-5)
    assert scores.isfinite().sum(dim=2).tolist() == [[1] * 4, [2] * 4, [3] * 4]


@torch.no_grad()
@pytest.mark.parametrize("feasible", [False, True])
def test_probabilities_of_all_assignments_sum_to_one(feasible: bool, summaries: Tensor) -> None:
    scheduler = scheduler_of(4, feasible)
    scores = scheduler(summaries, STAGES)
    for scheme, stages in enumerate(STAGES.tolist()):
        assignments = torch.tensor(list(itertools.product(range(stages), repeat=4)))
        held = [len(set(assignment.tolist())) == stages for assignment in assignments]
        possible = assignments[torch.tensor(held)] if feasible else assignments
        own = scores[scheme].expand(len(possible), -1, -1)
        probabilities = scheduler.evaluate(own, possible).log_probs.sum(dim=1).exp()
        assert probabilities.sum().item() == pytest.approx(1, abs=1e-5)
        assert (probabilities > 0).all()


def test_with_as_many_stages_as_accelerators_the_last_choice_is_forced() -> None:
    scheduler = scheduler_of(3, feasible=True)
    scores = scheduler(torch.randn(1, 3, UNITS), torch.tensor([3]))
    evaluation = scheduler.evaluate(scores, torch.tensor([[2, 0, 1]]))
    assert evaluation.free.tolist() == [[True, True, False]]
    (evaluation.log_probs.sum() + evaluation.entropies.sum()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in scheduler.parameters())  # type: ignore
