"""A user's ``torch.autograd.Function`` keeps its own backward on workers, whatever the method."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession, Minibatches, RunOptions, run_reference
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.in_turns import in_turns, words
from tests.support.models.forked import POLICIES, largest_difference
from tests.support.training.pipelines import assert_state, draw, in_a_row, random_order, train

MINIBATCHES, BATCH, SAMPLES, WIDTH = 12, 8, 40, 6
PLAIN_SGD = OptimizerSpec(name="sgd", options={"lr": 0.1, "momentum": 0.9})


class RoundStraightThrough(torch.autograd.Function):
    """Rounds; the gradient passes as if it did not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (4 * x).round() / 4

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


round_straight_through = RoundStraightThrough.apply  # bound at import, as is usual


class Reversed(torch.autograd.Function):
    """The gradient reversal of domain adaptation; its result is its argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return -ctx.strength * gradient, None


class ClippedProduct(torch.autograd.Function):
    """A linear layer with a weight, two outputs, and a backward that clips: in the newer form."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, scale: float = 2.0) -> tuple[Tensor, Tensor]:
        return scale * x @ weight.t(), x.square().sum(1, keepdim=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, ctx.scale = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, of_product: Tensor, of_norm: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        clipped = of_product.clamp(-0.01, 0.01) * ctx.scale
        return clipped @ (weight + weight.sign()) + of_norm * x, clipped.t() @ x, None


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 2)
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = round_straight_through(self.first(x))
        product, norm = ClippedProduct.apply(torch.tanh(x), self.weight)
        x = torch.tanh(self.hidden(product)) + norm
        return self.last(Reversed.apply(x, 0.5))


class FocalLoss(torch.autograd.Function):
    """Cross-entropy whose gradient is not its own: twice as large."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, targets: Tensor) -> Tensor:
        ctx.save_for_backward(outputs, targets)
        return F.cross_entropy(outputs, targets)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        outputs, targets = ctx.saved_tensors
        chosen = F.one_hot(targets, outputs.shape[1])
        return 2 * gradient * (outputs.softmax(1) - chosen) / len(outputs), None


def custom() -> Task:
    module = Custom().double()
    inputs = torch.randn(BATCH, WIDTH).double()
    return Task(module, (inputs,), torch.arange(BATCH) % 3, FocalLoss.apply)


def _samples() -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(SAMPLES, WIDTH, generator=generator).double()], torch.arange(SAMPLES) % 3


ORDER = random_order(SAMPLES, MINIBATCHES, BATCH)


@pytest.fixture(scope="module")
def session() -> Iterator[ClusterSession]:
    captured = capture(
        ModelReference.named("tests.runtime.stage.passes.test_custom_functions:custom")
    )
    with ClusterSession(captured, workers=3) as session:
        session.use_samples(*_samples())
        yield session


def _weights(session: ClusterSession, placement: Placement, method: Method) -> dict[str, Tensor]:
    deployment = session.deploy(placement, method, PLAIN_SGD)
    session.run(deployment, MINIBATCHES, RunOptions(order=ORDER))
    return session.collect(deployment)[0]


def test_a_function_is_an_operator_of_its_own(session: ClusterSession) -> None:
    types = [operator.type for operator in session.graph.operators]
    assert {"RoundStraightThrough", "ClippedProduct", "Reversed"} <= set(types)
    function = session.graph.operators[types.index("ClippedProduct")]
    assert function.parameter_bytes == WIDTH * WIDTH * 8


@pytest.mark.parametrize("accelerators", [(0,), (0, 1, 2)])
def test_synchronous_methods_equal_a_plain_loop(
    session: ClusterSession, accelerators: tuple[int, ...]
) -> None:
    method = Method(schedule="gpipe", policy="sync")
    found = _weights(session, in_a_row(session.graph, *accelerators), method)
    task = session.captured.reference.build()
    optimizer = torch.optim.SGD(task.module.parameters(), lr=0.1, momentum=0.9)
    assert task.loss is not None
    train(task.module, task.loss, optimizer, draw(*_samples(), ORDER))
    assert_state(found, task.module)


@pytest.mark.parametrize(
    ("accelerators", "policy", "recompute"),
    in_turns([(0, 1, 2), (0, 0, 1)], POLICIES, [False, True], one_of=3),
    ids=words,
)
def test_asynchronous_methods_equal_the_reference(
    session: ClusterSession, policy: str, accelerators: tuple[int, ...], recompute: bool
) -> None:
    method = POLICIES[policy].model_copy(update={"recompute": recompute})
    placement = in_a_row(session.graph, *accelerators)
    wanted = run_reference(
        session.captured,
        placement,
        Minibatches(*_samples()),
        MINIBATCHES,
        method=method,
        optimizer=PLAIN_SGD,
        options=RunOptions(order=ORDER),
    )
    found = _weights(session, placement, method)
    assert largest_difference(found, wanted.state) < 1e-9
    assert largest_difference(found, session.captured.state) > 1e-3, "training changed nothing"


def test_stashing_is_pipedreams_update_formula_with_the_functions_own_gradients(
    session: ClusterSession,
) -> None:
    """Against the user's module alone: neither the capture nor the reference is in the oracle."""
    operators, stages, rate = len(session.graph), 3, 0.1
    placement = in_a_row(session.graph, 0, 1, 2)
    spec = OptimizerSpec(name="sgd", options={"lr": rate, "momentum": 0.0})
    deployment = session.deploy(placement, Method(policy="stash"), spec)
    session.run(deployment, MINIBATCHES, RunOptions(order=ORDER))
    found, _ = session.collect(deployment)

    stage_of = placement.stage_of_operator(operators)
    owners = {op.module: stage_of[op.id] for op in session.graph.operators if op.parameter_bytes}
    task = session.captured.reference.build()
    assert task.loss is not None
    start = {name: weight.detach() for name, weight in task.module.named_parameters()}
    versions = [start]
    inputs, targets = _samples()
    for t in range(MINIBATCHES):
        delayed = {
            name: versions[max(0, t - (stages - 1 - owners[name.rpartition(".")[0]]))][name]
            .clone()
            .requires_grad_()
            for name in start
        }
        indices = ORDER[t]
        outputs = functional_call(task.module, delayed, (inputs[0][indices],))
        gradients = torch.autograd.grad(
            task.loss(outputs, targets[indices]), list(delayed.values())
        )
        newest = versions[-1]
        versions.append(
            {
                name: newest[name] - rate * gradient
                for name, gradient in zip(delayed, gradients, strict=True)
            }
        )
    assert largest_difference(found, versions[-1]) < 1e-9


def test_reduced_precision_rounds_and_does_not_fail(session: ClusterSession) -> None:
    method = Method(schedule="gpipe", policy="sync", precision="bfloat16")
    exact = _weights(
        session, in_a_row(session.graph, 0, 1, 2), Method(schedule="gpipe", policy="sync")
    )
    rounded = _weights(session, in_a_row(session.graph, 0, 1, 2), method)
    assert largest_difference(rounded, exact) < 0.5
