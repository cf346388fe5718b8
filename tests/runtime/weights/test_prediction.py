"""The prediction rules against the steps that torch's optimizers take."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from drlpp.runtime.weights.displacements import SmoothedGradient
from drlpp.runtime.weights.optimizers import build_optimizer
from drlpp.runtime.weights.update_rules import (
    adam_direction,
    has_rule,
    predict_weights_,
    smoothed_gradient,
)
from drlpp.specs.optimizer_spec import OptimizerSpec


def _number(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_subnormal=False)


_BETAS = st.tuples(_number(0, 0.95), _number(0.7, 0.999))
_EPS = st.sampled_from([1e-10, 1e-8, 1e-3])
_DECAY = st.just(0.0) | _number(0.001, 0.1)
_MOMENTUM = st.just(0.0) | _number(0.01, 0.95)

_ADAM = {"betas": _BETAS, "eps": _EPS, "weight_decay": _DECAY, "amsgrad": st.booleans()}
_OPTIONS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "sgd": {"momentum": _MOMENTUM, "dampening": _number(0, 0.9), "weight_decay": _DECAY},
    "sgd-nesterov": {
        "momentum": _number(0.01, 0.95),
        "nesterov": st.just(True),
        "weight_decay": _DECAY,
    },
    "adam": _ADAM | {"decoupled_weight_decay": st.booleans()},
    "adamw": _ADAM,
    "nadam": {
        "betas": _BETAS,
        "eps": _EPS,
        "weight_decay": _DECAY,
        "momentum_decay": _number(0, 0.1),
        "decoupled_weight_decay": st.booleans(),
    },
    "radam": {
        "betas": _BETAS,
        "eps": _EPS,
        "weight_decay": _DECAY,
        "decoupled_weight_decay": st.booleans(),
    },
    "adamax": {"betas": _BETAS, "eps": _EPS, "weight_decay": _DECAY},
    "rmsprop": {
        "alpha": _number(0.5, 0.99),
        "eps": _EPS,
        "weight_decay": _DECAY,
        "momentum": _MOMENTUM,
        "centered": st.booleans(),
    },
    "adagrad": {
        "lr_decay": _number(0, 0.5),
        "eps": _EPS,
        "weight_decay": _DECAY,
        "initial_accumulator_value": _number(0, 0.5),
    },
    "adadelta": {"rho": _number(0.1, 1), "eps": _EPS},
}


def _gradient(weight: Tensor) -> Tensor:
    """Without elements near zero, where an update may cancel the weight and nothing is left."""
    real = torch.view_as_real(weight) if weight.is_complex() else weight
    signs = torch.randint(2, real.shape) * 2 - 1
    gradient = signs * (0.5 + torch.rand_like(real))
    return torch.view_as_complex(gradient) if weight.is_complex() else gradient


@pytest.mark.parametrize("kind", _OPTIONS)
@settings(max_examples=25)
@given(data=st.data())
def test_direction_is_that_of_the_last_step(kind: str, data: st.DataObject) -> None:
    """lr·ΔW_t = (1 − lr·λ)·W_{t−1} − W_t, where λ is zero unless the decay is decoupled."""
    options = data.draw(st.fixed_dictionaries(_OPTIONS[kind]))
    name = kind.partition("-")[0]
    is_complex = data.draw(st.booleans())
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    kinds = [torch.complex128 if is_complex else torch.float64, torch.float64]
    weights = [torch.randn(3, 2, dtype=one).requires_grad_() for one in kinds]
    optimizer = build_optimizer(
        OptimizerSpec.parse(name, **options), weights, fused=data.draw(st.booleans())
    )
    assert has_rule(optimizer)
    decoupled = name == "adamw" or options.get("decoupled_weight_decay", False)
    for step, rate in enumerate(data.draw(st.lists(_number(1e-3, 0.1), min_size=1, max_size=8))):
        optimizer.param_groups[0]["lr"] = rate
        before = [weight.detach().clone() for weight in weights]
        weights[0].grad = _gradient(weights[0])
        # A weight with fewer updates than others, which torch's fused SGD cannot have.
        weights[1].grad = _gradient(weights[1]) if step or name == "sgd" else None
        optimizer.step()
        after = [weight.detach().clone() for weight in weights]
        predict_weights_(weights, optimizer, 3 * rate)
        kept = 1 - rate * options["weight_decay"] if decoupled else 1
        for weight, old, new in zip(weights, before, after, strict=True):
            if weight.grad is not None:
                expected = new - 3 * (kept * old - new)
                torch.testing.assert_close(weight.detach(), expected, rtol=1e-12, atol=1e-12)
            with torch.no_grad():
                weight.copy_(new)


def test_adam_direction_is_table_1() -> None:
    first, second = torch.tensor([0.3, -2.0]), torch.tensor([0.04, 0.25])
    found = adam_direction(first, second, 3, (0.8, 0.9), 0.01)
    expected = (first / (1 - 0.8**3)) / ((second / (1 - 0.9**3)).sqrt() + 0.01)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("rprop", {}),
        ("asgd", {}),
        ("adafactor", {}),
        ("adadelta", {"weight_decay": 0.1}),
        (f"{__name__}:OwnAdam", {}),
    ],
)
def test_no_rule_is_told_and_not_guessed(name: str, options: dict[str, Any]) -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer = build_optimizer(OptimizerSpec.parse(name, **options), [weight])
    assert not has_rule(optimizer)
    with pytest.raises(TypeError, match="no prediction rule for"):
        predict_weights_([weight], optimizer, 0.5)


class OwnAdam(torch.optim.Adam):
    """A subclass may step in a way of its own."""


def test_where_an_update_cancels_the_weight_the_prediction_stays_finite() -> None:
    """RMSprop that only decays: the update is lr·sign(W), so that W = lr becomes 0."""
    weight = torch.tensor([0.1, 0.2, 1.0], requires_grad=True)
    options = {"lr": 0.1, "alpha": 0.0, "eps": 0.0, "weight_decay": 1.0}
    optimizer = build_optimizer(OptimizerSpec.parse("rmsprop", **options), [weight])
    weight.grad = torch.zeros(3)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.tensor([0.0, 0.1, 0.9]))
    predict_weights_([weight], optimizer, 0.1)
    torch.testing.assert_close(weight.detach(), torch.tensor([0.0, 0.0, 0.8]))


@pytest.mark.parametrize(
    ("name", "options", "smoothed"),
    [
        ("sgd", {"momentum": 0.5}, lambda g, h: 0.5 * g + h),
        ("sgd", {"momentum": 0.0}, lambda g, h: h),
        ("adam", {"betas": (0.5, 0.9)}, lambda g, h: 0.25 * g + 0.5 * h),
        ("rmsprop", {}, lambda g, h: h),
        ("rmsprop", {"centered": True, "alpha": 0.5}, lambda g, h: 0.25 * g + 0.5 * h),
        ("adadelta", {"weight_decay": 0.1}, lambda g, h: h),
        ("rprop", {}, lambda g, h: h),
        # With betas, and a momentum where nobody knows it.
        ("tests.support.models.lion:Lion", {}, lambda g, h: h),
    ],
)
def test_smoothed_gradient(
    name: str, options: dict[str, Any], smoothed: Callable[[Tensor, Tensor], Tensor]
) -> None:
    weight = torch.zeros(3, requires_grad=True)
    optimizer = build_optimizer(OptimizerSpec.parse(name, **options), [weight])
    gradients = [torch.tensor([1.0, -2.0, 3.0]), torch.tensor([0.5, 1.0, -1.0])]
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
    found = smoothed_gradient(optimizer, weight)
    torch.testing.assert_close(found, smoothed(*gradients))
    # What is the gradient itself must be kept apart while the next is collected.
    reads = SmoothedGradient([weight], optimizer).reads_last_gradient
    assert reads if found is weight.grad else not (reads and has_rule(optimizer))
