"""Muon for matrices with AdamW for the rest: torch's own two, side by side."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import AdamW

from drlpp.runtime.weights.optimizers import build_optimizer
from drlpp.specs.optimizer_spec import OptimizerSpec

pytestmark = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch 2.9 has it")

SHAPES = {
    "both": [(6, 4), (5,), (), (3, 7), (2, 3, 3, 3)],
    "matrices": [(6, 4), (3, 7)],
    "others": [(5,), (2, 3, 3, 3)],
}
RATES = [0.02, 0.01, 0.03]


def _weights(shapes: list[tuple[int, ...]]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("kinds", SHAPES)
def test_is_torchs_muon_and_torchs_adamw(kinds: str, fused: bool) -> None:
    options: dict[str, Any] = {"weight_decay": 0.1, "momentum": 0.8, "nesterov": False}
    spec = OptimizerSpec.parse("muon", lr=0.02, adamw_lr=0.005, betas=(0.8, 0.9), **options)
    ours, theirs = _weights(SHAPES[kinds]), _weights(SHAPES[kinds])
    one = build_optimizer(spec, ours, fused=fused)
    matrices = [weight for weight in theirs if weight.dim() == 2]
    others = [weight for weight in theirs if weight.dim() != 2]
    pair = []
    if matrices:
        muon = torch.optim.Muon(matrices, adjust_lr_fn="match_rms_adamw", **options)
        pair.append((muon, 1.0))
    if others:
        adamw = AdamW(others, betas=(0.8, 0.9), weight_decay=0.1, fused=fused)
        pair.append((adamw, 0.25))
    for step, rate in enumerate(RATES):
        generator = torch.Generator().manual_seed(step)
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn(mine.shape, generator=generator)
            other.grad = mine.grad.clone()
        # A weight that no path reaches.
        ours[0].grad = theirs[0].grad = None if step == 1 else ours[0].grad
        one.param_groups[0]["lr"] = rate
        one.step()
        for part, ratio in pair:
            part.param_groups[0]["lr"] = rate * ratio
            part.step()
    for mine, other, before in zip(ours, theirs, _weights(SHAPES[kinds]), strict=True):
        assert torch.equal(mine, other)
        assert not torch.equal(mine, before)
    # What a checkpoint finds.
    keys = {weight.dim() == 2: one.state[weight].keys() for weight in ours}
    wanted = {True: {"momentum_buffer"}, False: {"exp_avg", "exp_avg_sq", "step"}}
    assert keys == {is_matrix: wanted[is_matrix] for is_matrix in keys}
