"""Means over held-out samples: every sample counts once, whatever the size of a minibatch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drlpp.runtime.loading.held_out import HeldOutCount, evaluation_order


@given(
    shapes=st.lists(st.integers(0, 40), min_size=1, max_size=3).filter(sum),
    batch_size=st.integers(1, 12),
    seed=st.integers(0, 99),
)
def test_means_are_those_over_all_samples(shapes: list[int], batch_size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(sum(shapes), generator=generator, dtype=torch.float64)
    whole, rests = [], []
    for samples, of_shape in zip(shapes, values.split(shapes), strict=True):
        order = evaluation_order(samples, batch_size)
        assert order.shape[1] == batch_size
        assert set(order.flatten().tolist()) == set(range(samples))
        minibatches = [of_shape[indices] for indices in order]
        whole += minibatches[: samples // batch_size]
        rests += minibatches[samples // batch_size :]
    scores = [*whole, *rests]
    count = HeldOutCount.of(shapes, batch_size)
    assert (count.samples, count.minibatches) == (sum(shapes), len(scores))
    losses = [minibatch.mean().item() for minibatch in scores]
    assert count.mean_loss(losses) == pytest.approx(values.mean().item())
    assert count.mean_score(scores) == pytest.approx(values.mean().item())
