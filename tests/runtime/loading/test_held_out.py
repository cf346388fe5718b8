"""Means over held-out samples: every sample counts once, whatever the size of a minibatch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drlpp.runtime.loading.held_out import HeldOutCount, evaluation_order


@given(samples=st.integers(1, 60), batch_size=st.integers(1, 12), seed=st.integers(0, 99))
def test_means_are_those_over_all_samples(samples: int, batch_size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(samples, generator=generator, dtype=torch.float64)
    order = evaluation_order(samples, batch_size)
    assert order.shape[1] == batch_size
    assert set(order.flatten().tolist()) == set(range(samples))
    scores = [values[indices] for indices in order]
    count = HeldOutCount(samples, batch_size)
    assert count.minibatches == len(scores)
    losses = [minibatch.mean().item() for minibatch in scores]
    assert count.mean_loss(losses) == pytest.approx(values.mean().item())
    assert count.mean_score(scores) == pytest.approx(values.mean().item())
