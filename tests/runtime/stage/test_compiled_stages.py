"""Compiled stages train as the reference does, and as stages that are not compiled."""

from collections.abc import Iterator

import pytest
from torch import Tensor
from torch.utils import _pytree as pytree

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.errors import InvalidInput
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task
from drlpp.models.zoo import SMALL
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession, Minibatches, RunOptions
from drlpp.runtime.device.compiling import why_not_compiled
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.in_turns import in_turns, words
from tests.support.models.forked import (
    POLICIES,
    SHAPES,
    largest_difference,
    order,
    placements,
    samples,
)
from tests.support.training.against_reference import train_twice
from tests.support.training.pipelines import in_a_row

MINIBATCHES = 9
SGD = OptimizerSpec(name="sgd", options={"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01})
ADAMW = OptimizerSpec(name="adamw", options={"lr": 0.01, "eps": 1e-4})
METHODS = [
    POLICIES["pipeoptim"],
    *(method for name, method in POLICIES.items() if name != "pipeoptim"),
    Method(policy="pipemare", annealing_minibatches=9, correction_decay=0.2),
    Method(policy="pipeoptim", recompute=True),
    Method(policy="stash", microbatches=2, accumulate=2),
    Method(policy="pipeoptim", microbatches=2, clip_norm=0.5),
    Method(schedule="gpipe", policy="sync", microbatches=4),
    Method(schedule="1f1b-flush", policy="sync", microbatches=4, recompute=True),
]


@pytest.fixture(scope="module", autouse=True)
def _compiler() -> None:
    if (reason := why_not_compiled()) is not None:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:forked"))


@pytest.fixture(scope="module")
def session(captured: CapturedModel) -> Iterator[ClusterSession]:
    with ClusterSession(captured, workers=4, note=lambda _: None) as session:
        session.use_samples(*samples())
        yield session


@pytest.mark.parametrize(
    ("method", "shape", "optimizer"),
    in_turns(METHODS, SHAPES, [ADAMW, SGD], slow=SHAPES),
    ids=words,
)
def test_weights_equal_the_reference(
    captured: CapturedModel,
    session: ClusterSession,
    method: Method,
    shape: str,
    optimizer: OptimizerSpec,
) -> None:
    """In double precision, with dropout; writes between a forward and its backward included."""
    candidate = Candidate(placements(captured)[shape], method.model_copy(update={"compiled": True}))
    options = RunOptions(order=order(MINIBATCHES))
    found = train_twice(
        session, candidate, optimizer, MINIBATCHES, Minibatches(*samples()), options
    )
    assert found.difference < 1e-9
    (reason,) = found.deployment.uncompiled.values()
    assert "lstm" in reason


@pytest.mark.system
def test_a_small_model_trains_to_the_weights_of_the_reference() -> None:
    captured = capture(ModelReference.named("tests.support.models.small:perceptron", layers=2))
    method = POLICIES["pipeoptim"].model_copy(update={"compiled": True})
    candidate = Candidate(in_a_row(captured.graph, 0, 1), method)
    given = Minibatches(captured.task.inputs, captured.task.targets)
    with ClusterSession(captured, workers=2, note=lambda _: None) as session:
        found = train_twice(session, candidate, ADAMW, MINIBATCHES, given, RunOptions())
    assert not found.deployment.uncompiled
    assert found.difference < 1e-3
    assert largest_difference(found.state, captured.state) > 1e-2, "training changed nothing"


def in_double(name: str) -> Task:
    """A model of the zoo in double precision: rounding hardly grows from minibatch to minibatch."""
    task = ModelReference.named(name, **SMALL[name]).build()
    inputs, targets = pytree.tree_map(
        lambda value: value.double() if value.is_floating_point() else value,
        (task.inputs, task.targets),
    )
    return task._replace(module=task.module.double(), inputs=inputs, targets=targets)


def _states(model: ModelReference, **options: object) -> Iterator[dict[str, Tensor]]:
    """Weights and buffers after some minibatches, without compiled stages and with them."""
    captured = capture(model, check=False)
    operators = len(captured.graph)
    halves = [2 * number // operators for number in range(operators)]
    placement = Placement.from_assignment(halves, (0, 1))
    with ClusterSession(captured, workers=2, note=lambda _: None) as session:
        for compiled in (False, True):
            method = choose_method("stash", {**options, "compiled": compiled})
            deployment = session.deploy(placement, method, OptimizerSpec.parse("sgd", lr=1e-3))
            session.run(deployment, 5)
            yield session.collect(deployment)[0]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "name", ["alexnet", "vgg16", "resnet50", "gpt2", "residual_lstm", "gnmt4", "awd_lm", "s2vt"]
)
def test_models_of_the_zoo_train_as_without(name: str) -> None:
    model = ModelReference.named("tests.runtime.stage.test_compiled_stages:in_double", name=name)
    plain, compiled = _states(model)
    assert largest_difference(compiled, plain) < 1e-8


@pytest.mark.slow
def test_half_precision_is_that_of_the_operators() -> None:
    plain, compiled = _states(ModelReference.named("gpt2", **SMALL["gpt2"]), precision="bfloat16")
    assert largest_difference(compiled, plain) < 1e-2


def test_schedules_with_backwards_in_halves_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"zb-h1 .* use 1f1b-flush"):
        choose_method(None, {"schedule": "zb-h1", "compiled": True})
