"""Optimizers built from their description, and their state by the names of parameters."""

import io
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer

from drlpp.runtime.stage.weight_group import OWN, WeightGroup
from drlpp.runtime.weights.optimizers import build_optimizer
from drlpp.runtime.weights.policies import WeightPolicy
from drlpp.specs.optimizer_spec import GroupMembers, OptimizerSpec

NAMES = ["matrix", "vector", "scalar", "untouched"]

SPECS: list[tuple[str, dict[str, Any]]] = [
    ("sgd", {"momentum": 0.0, "weight_decay": 0.1}),
    ("sgd", {}),
    ("sgd", {"nesterov": True}),
    ("adam", {"amsgrad": True}),
    ("adamw", {}),
    ("nadam", {"weight_decay": 0.1}),
    ("radam", {}),
    ("adamax", {}),
    ("rmsprop", {"centered": True}),
    ("rmsprop", {"momentum": 0.5}),
    ("adagrad", {"lr_decay": 0.1}),
    ("adadelta", {}),
    ("adafactor", {}),
    ("asgd", {"t0": 1.0}),
    ("rprop", {}),
    ("muon", {}),
]


def _weights() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 3), (5,), (), (2,)]
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


def _group(spec: OptimizerSpec, names: list[str], policy: WeightPolicy) -> WeightGroup:
    return WeightGroup(
        OWN,
        GroupMembers(tuple(names), spec, spec.rate, spec.rate),
        tuple(range(len(names))),
        policy,
    )


def _train(optimizer: Optimizer, weights: list[Tensor], steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for weight in weights[:-1]:
            weight.grad = torch.randn(weight.shape, generator=generator)
        optimizer.step()


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("name", "options"), SPECS)
def test_training_goes_on_from_a_stored_state(
    name: str, options: dict[str, Any], fused: bool
) -> None:
    spec = OptimizerSpec.parse(name, **options)
    weights = _weights()
    optimizer = build_optimizer(spec, weights, fused=fused)
    _train(optimizer, weights, range(7))
    file = io.BytesIO()
    torch.save(_group(spec, NAMES, WeightPolicy(weights, optimizer)).optimizer_state(), file)
    kept = [weight.detach().clone() for weight in weights]
    _train(optimizer, weights, range(7, 12))

    resumed = [weight.clone().requires_grad_() for weight in kept]
    again = build_optimizer(spec, resumed, fused=fused)
    file.seek(0)
    # Another placement may list a stage's parameters in another order.
    order = [2, 0, 3, 1]
    policy = WeightPolicy([resumed[k] for k in order], again)
    _group(spec, [NAMES[k] for k in order], policy).load_optimizer_state(torch.load(file))
    _train(again, resumed, range(7, 12))
    for one, other, before in zip(resumed[:-1], weights[:-1], kept[:-1], strict=True):
        assert torch.equal(one, other)
        assert not torch.equal(one, before)


def test_a_state_brings_no_weights() -> None:
    """Of a weight of many dimensions too."""
    weights = [torch.ones((2,) * 7, requires_grad=True)]
    optimizer = build_optimizer(OptimizerSpec.parse("adam"), weights)
    weights[0].grad = torch.ones_like(weights[0])
    optimizer.step()
    spec = OptimizerSpec.parse("adam")
    state = _group(spec, ["matrix"], WeightPolicy(weights, optimizer)).optimizer_state()
    state["matrix"]["group"] |= {"params": [], "other": 1}
    again = build_optimizer(OptimizerSpec.parse("adam"), weights)
    _group(spec, ["matrix"], WeightPolicy(weights, again)).load_optimizer_state(state)
    assert again.param_groups[0].keys() == optimizer.param_groups[0].keys()
    assert again.param_groups[0]["params"] == weights
    assert torch.equal(again.state[weights[0]]["exp_avg"], state["matrix"]["exp_avg"])


def test_fused_kernels_are_taken_where_there_are_any() -> None:
    weights = _weights()
    fused = {
        name: build_optimizer(OptimizerSpec(name=name), weights).param_groups[0].get("fused")
        for name in ["sgd", "adam", "adamw", "adagrad", "nadam"]
    }
    assert fused == {"sgd": True, "adam": True, "adamw": True, "adagrad": True, "nadam": None}
    # They are for real numbers.
    complex_weight = torch.zeros(2, dtype=torch.complex64, requires_grad=True)
    optimizer = build_optimizer(OptimizerSpec(name="adam"), [*weights, complex_weight])
    assert not optimizer.param_groups[0]["fused"]
