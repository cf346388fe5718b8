"""Weight policies on single layers, against gradients written down by hand.

A backward with newer weights keeps the activations of its forward, and multiplies by the newer
weights. The runtime and the reference executor write newer weights behind autograd's back, so
this is checked here without autograd, for every type of layer that has weights.
"""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from drlpp.runtime.weights.displacements import TableOne, Trajectory
from drlpp.runtime.weights.optimizers import build_optimizer
from drlpp.runtime.weights.policies import Stash, Vanilla, WeightPolicy
from drlpp.schedule.weight_policies import WeightUse
from drlpp.specs.optimizer_spec import OptimizerSpec

SGD = OptimizerSpec(name="sgd", options={"lr": 0.5, "momentum": 0.9})


def _layers() -> dict[str, tuple[nn.Module, Tensor]]:
    torch.manual_seed(0)
    return {
        "linear": (nn.Linear(4, 3), torch.randn(5, 4)),
        "conv2d": (nn.Conv2d(4, 3, 3), torch.randn(2, 4, 6, 6)),
        "layer_norm": (nn.LayerNorm(4), torch.randn(5, 4)),
    }


def _set_gradients(policy: WeightPolicy, scale: float) -> None:
    for weight in policy.weights:
        weight.grad = scale * torch.ones_like(weight)


def _input_gradient(module: nn.Module, weights: list[Tensor], x: Tensor, seed: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    names = [name for name, _ in module.named_parameters()]
    output = functional_call(module, dict(zip(names, weights, strict=True)), (leaf,))
    return torch.autograd.grad(output, leaf, seed)[0]


def _policy(kind: str, weights: list[Tensor]) -> WeightPolicy:
    optimizer = build_optimizer(SGD, weights)
    match kind:
        case "vanilla":
            return Vanilla(weights, optimizer)
        case "stash":
            return Stash(weights, optimizer)
        case "pipeoptim":
            return TableOne(weights, optimizer)
        case _:
            return Trajectory(weights, optimizer, 0.5)


PART = (0, 0)
# A forward at version 1, with two updates before its backward.
USES = {
    "vanilla": WeightUse(1, 3, stashed=1),
    "stash": WeightUse(1, 3, stashed=1),
    "pipeoptim": WeightUse(1, 3, stashed=1, forward_lead=2),
    "pipemare": WeightUse(1, 3, stashed=1, backward_lead=-2),
}


@pytest.mark.parametrize("kind", _layers())
@pytest.mark.parametrize("policy_kind", USES)
def test_backward_of_a_layer_uses_the_weights_of_the_policy(kind: str, policy_kind: str) -> None:
    module, x = _layers()[kind]
    weights = [w.detach().clone().requires_grad_() for w in module.parameters()]
    names = [name for name, _ in module.named_parameters()]
    policy, use = _policy(policy_kind, weights), USES[policy_kind]
    policy.begin({PART: use}, [0.5])
    start = [weight.detach().clone() for weight in policy.weights]
    _set_gradients(policy, 0.1)
    policy.update()
    before = [weight.detach().clone() for weight in policy.weights]

    leaf = x.clone().requires_grad_()
    with policy.lent(use) as lent:
        seen = [weight.detach().clone() for weight in lent]
        output = functional_call(module, dict(zip(names, lent, strict=True)), (leaf,))
    seed = torch.randn_like(output)
    for _ in range(2):
        _set_gradients(policy, 0.3)
        policy.update()
    newest = [weight.detach().clone() for weight in policy.weights]
    with policy.lent(use, backward=True) as leaves:
        found = torch.autograd.grad(output, [leaf, *leaves], seed)
    torch.testing.assert_close([w.detach() for w in policy.weights], newest, rtol=0, atol=0)

    if policy_kind == "pipeoptim":
        # Ŵ = W − lr · s · m, where one update from zero makes m the gradient.
        predicted = [weight - 0.5 * 2 * 0.1 for weight in before]
        torch.testing.assert_close(seen, predicted)
    else:
        torch.testing.assert_close(seen, before)
    used = before if policy_kind == "stash" else newest
    if policy_kind == "pipemare":
        # δ follows the steps −lr·m with γ = 0.5; m = 0.1, 0.39, 0.651.
        steps = [-0.5 * momentum for momentum in (0.1, 0.9 * 0.1 + 0.3, 0.81 * 0.1 + 0.27 + 0.3)]
        delta = 0.125 * steps[0] + 0.25 * steps[1] + 0.5 * steps[2]
        for first, weight in zip(start, newest, strict=True):
            torch.testing.assert_close(weight, first + sum(steps))
        used = [weight - 2 * delta for weight in newest]
    if kind == "layer_norm":
        # Its input gradient is not linear in the input; only weight γ enters, elementwise.
        normalised = nn.functional.layer_norm(x, (4,))
        gamma = used[0]
        inner = seed * gamma
        variance = x.var(-1, unbiased=False, keepdim=True) + module.eps
        wanted = (
            inner
            - inner.mean(-1, keepdim=True)
            - normalised * (inner * normalised).mean(-1, keepdim=True)
        ) / variance.sqrt()
    else:
        # Linear in the input: the gradient is that of a forward with the backward's weights.
        wanted = _input_gradient(module, used, x, seed)
    torch.testing.assert_close(found[0], wanted)


@pytest.mark.parametrize("changes", [(True, True), (False, True), (True, False), (False, False)])
def test_what_a_part_still_needs_is_stashed_and_nothing_else(changes: tuple[bool, ...]) -> None:
    """A part at version 0, another at version 2, with two updates between; some are skipped."""
    weight = torch.ones(3, requires_grad=True)
    policy = Stash([weight], build_optimizer(SGD, [weight]))
    first, second = WeightUse(0, 2, stashed=0), WeightUse(2, 2, stashed=2)
    policy.begin({(0, 0): first, (1, 0): second}, [0.5])
    for changed in changes:
        _set_gradients(policy, 0.1)
        policy.update(skipped=not changed)
    newest = weight.detach().clone()
    assert bool((newest < 1).all()) == any(changes)
    assert len(policy.copies()) == 2
    for use, wanted in ((first, torch.ones(3)), (second, newest)):
        with policy.lent(use, backward=True) as (lent,):
            torch.testing.assert_close(lent.detach(), wanted, rtol=0, atol=0)
        policy.done_with(use)
    # The newest ones themselves.
    assert [copy.data_ptr() for copy in policy.copies()] == [weight.data_ptr()]
