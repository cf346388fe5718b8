"""Where weights are predicted to be, against the steps that torch's optimizers take."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drlpp.runtime.stage.weight_group import build_policy
from drlpp.runtime.weights.displacements import (
    AdamStep,
    LastStep,
    PredictedWeights,
    SmoothedGradient,
    TableOne,
)
from drlpp.runtime.weights.optimizers import build_optimizer
from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import WeightUse
from drlpp.specs.optimizer_spec import OptimizerSpec

_MOMENTUM, _DECAY = st.floats(0.01, 0.95), st.just(0.0) | st.floats(0.001, 0.1)
_ADAM = {
    "betas": st.tuples(st.floats(0, 0.95), st.floats(0.7, 0.999)),
    "eps": st.sampled_from([1e-10, 1e-8, 1e-3]),
    "weight_decay": _DECAY,
    "amsgrad": st.booleans(),
}
_OPTIONS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "sgd": {"momentum": _MOMENTUM, "dampening": st.floats(0, 0.9), "weight_decay": _DECAY},
    "adam": _ADAM | {"decoupled_weight_decay": st.booleans()},
    "adamw": _ADAM,
}


@pytest.mark.parametrize("name", _OPTIONS)
@settings(max_examples=15)
@given(data=st.data())
def test_table_1_is_the_last_step_without_decoupled_decay(name: str, data: st.DataObject) -> None:
    """lr·ΔW_t = (1 − lr·λ)·W_{t−1} − W_t, where λ is zero unless the decay is decoupled."""
    options = data.draw(st.fixed_dictionaries(_OPTIONS[name]))
    is_complex = data.draw(st.booleans())
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    kinds = [torch.complex128 if is_complex else torch.float64, torch.float64]
    weights = [torch.randn(3, 2, dtype=one).requires_grad_() for one in kinds]
    fused = data.draw(st.booleans())
    optimizer = build_optimizer(OptimizerSpec.parse(name, **options), weights, fused=fused)
    policy = build_policy(Method(), weights, optimizer, delay=3)
    assert type(policy) is TableOne
    decoupled = name == "adamw" or options.get("decoupled_weight_decay", False)
    rates = data.draw(st.lists(st.floats(1e-3, 0.1), min_size=1, max_size=8))
    policy.begin({}, rates)
    for step, rate in enumerate(rates):
        before = [weight.detach().clone() for weight in weights]
        weights[0].grad = torch.randn_like(weights[0])
        # A weight with fewer updates than others, which torch's fused SGD cannot have.
        weights[1].grad = torch.randn_like(weights[1]) if step or name == "sgd" else None
        policy.update()
        after = [weight.detach().clone() for weight in weights]
        ahead = rates[min(step + 1, len(rates) - 1)]
        kept = 1 - rate * options["weight_decay"] if decoupled else 1
        with policy.lent(WeightUse(0, 0, 0, forward_lead=1)) as predicted:
            for weight, old, new in zip(predicted, before, after, strict=True):
                if weight.grad is not None:
                    expected = new - ahead / rate * (kept * old - new)
                    torch.testing.assert_close(weight.detach(), expected, rtol=1e-9, atol=1e-9)
        assert all(torch.equal(*pair) for pair in zip(weights, after, strict=True))


class OwnAdam(torch.optim.Adam):
    """A subclass may step in a way of its own."""


@pytest.mark.parametrize(
    ("policy", "name", "options", "kind"),
    [
        ("pipeoptim", "sgd", {"momentum": 0.0}, LastStep),
        ("pipeoptim", "sgd", {"nesterov": True}, LastStep),
        ("pipeoptim", "nadam", {}, LastStep),
        ("pipeoptim", f"{__name__}:OwnAdam", {}, LastStep),
        ("last-step", "adam", {}, LastStep),
        ("xpipe", "adamw", {}, TableOne),
        ("xpipe", "sgd", {}, AdamStep),
        ("spectrain", "sgd", {}, SmoothedGradient),
        ("spectrain", "adam", {}, SmoothedGradient),
        ("spectrain", "sgd", {"momentum": 0.0}, LastStep),
        ("spectrain", "rmsprop", {}, LastStep),
        # With betas, and a momentum where nobody knows it.
        ("spectrain", "tests.support.models.lion:Lion", {}, LastStep),
    ],
)
def test_the_direction_suits_the_optimizer(
    policy: str, name: str, options: dict[str, Any], kind: type[PredictedWeights]
) -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer = build_optimizer(OptimizerSpec.parse(name, **options), [weight])
    assert type(build_policy(Method(policy=policy), [weight], optimizer, delay=1)) is kind
