"""The workers' weights after N minibatches equal the reference executor's (DESIGN §6)."""

from collections.abc import Iterator

import pytest
import torch

from drlpp.capture import CapturedModel, capture
from drlpp.optimizer_spec import OptimizerSpec
from drlpp.placement import Placement
from drlpp.runtime import ClusterSession, Minibatches, run_reference
from drlpp.task import ModelReference
from drlpp.training_options import Method

MINIBATCHES = 11
SAMPLES = 40

OPTIMIZERS = {
    "sgd": OptimizerSpec(name="sgd", options={"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    "plain-sgd": OptimizerSpec(
        name="sgd", options={"lr": 0.1, "momentum": 0.0, "weight_decay": 0.1}
    ),
    # The bias of attention's keys has no gradient but rounding noise, which a tiny ε would blow up.
    "adam": OptimizerSpec(name="adam", options={"lr": 0.01, "weight_decay": 0.01, "eps": 1e-4}),
    "adamw": OptimizerSpec(name="adamw", options={"lr": 0.01, "eps": 1e-4}),
}


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference(name="tests.models:forked"))


@pytest.fixture(scope="module")
def session(captured: CapturedModel) -> Iterator[ClusterSession]:
    with ClusterSession(captured, workers=4) as session:
        session.use_samples(*_samples())
        yield session


def _samples() -> tuple[list[torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 20, (SAMPLES, 6), generator=generator)
    targets = torch.randint(0, 5, (SAMPLES,), generator=generator)
    return [tokens], targets


def _order() -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(0, SAMPLES, (MINIBATCHES, 8), generator=generator)


def placements(captured: CapturedModel) -> dict[str, Placement]:
    """Straight, replicated and branching placements of the forked model."""
    graph = captured.graph
    kinds = {op.type: op.id for op in graph.operators}
    lstm = kinds["lstm"]
    conv_branch = {
        op.id
        for op in graph.operators
        if op.module in {"conv", "norm"} or (op.type == "relu" and op.id < kinds["dropout"])
    }
    before = {0, 1, 2} - {lstm} - conv_branch
    forked = [
        0 if op.id in before else 1 if op.id == lstm else 2 if op.id in conv_branch else 3
        for op in graph.operators
    ]
    even = [min(4 * op.id // len(graph), 3) for op in graph.operators]
    return {
        "straight": Placement.from_assignment(even, (0, 1, 2, 3)),
        "replicated": Placement.from_assignment([min(k, 2) for k in even], (0, 0, 1, 2)),
        "replicated-last": Placement.from_assignment([min(k, 1) for k in even], (0, 1, 1, 1)),
        "branching": Placement.from_assignment(forked, (3, 1, 0, 2)),
        "data-parallel": Placement.from_assignment([0] * len(graph), (0, 0, 0, 0)),
    }


def _largest_difference(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    assert found.keys() == wanted.keys()
    return max(
        ((found[name] - wanted[name]).abs().max() / wanted[name].abs().max().clamp(min=1e-3)).item()
        for name in wanted
        if wanted[name].is_floating_point()
    )


SHAPES = ["straight", "replicated", "replicated-last", "branching"]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("policy", ["vanilla", "stash", "pipeoptim"])
def test_asynchronous_weights_equal_the_reference(
    captured: CapturedModel, session: ClusterSession, policy: str, shape: str, optimizer: str
) -> None:
    _check(captured, session, shape, Method(policy=policy), OPTIMIZERS[optimizer])


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("shape", [*SHAPES, "data-parallel"])
@pytest.mark.parametrize("microbatches", [1, 4])
def test_gpipe_weights_equal_the_reference(
    captured: CapturedModel, session: ClusterSession, shape: str, microbatches: int, optimizer: str
) -> None:
    method = Method(schedule="gpipe", policy="sync", microbatches=microbatches)
    _check(captured, session, shape, method, OPTIMIZERS[optimizer])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_data_parallel_weights_equal_the_reference(
    captured: CapturedModel, session: ClusterSession, optimizer: str
) -> None:
    _check(captured, session, "data-parallel", Method(policy="sync"), OPTIMIZERS[optimizer])


def _check(
    captured: CapturedModel,
    session: ClusterSession,
    shape: str,
    method: Method,
    optimizer: OptimizerSpec,
) -> None:
    placement = placements(captured)[shape]
    reference = run_reference(
        captured,
        placement,
        Minibatches(*_samples(), order=_order()),
        MINIBATCHES,
        method=method,
        optimizer=optimizer,
    )
    deployment = session.deploy(placement, method, optimizer)
    _, results = session.run(deployment, MINIBATCHES, _order())
    state, _ = session.collect(deployment)
    assert _largest_difference(state, reference.state) < 1e-9
    losses = {part: loss for result in results.values() for part, loss in result.losses.items()}
    assert losses == pytest.approx(reference.losses, rel=1e-9)
    assert _largest_difference(state, captured.state) > 1e-3, "training changed nothing"
