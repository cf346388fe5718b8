"""Batch normalisation with replicas: each has the statistics of what it saw; whose count, when."""

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task
from drlpp.runtime import ClusterSession, RunOptions
from drlpp.runtime.deploying.stage_cutting import cut_stages
from drlpp.runtime.stage.stages import Buffer
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.training.pipelines import assert_state, draw, in_a_row, random_order

BATCH, SAMPLES, WIDTH, MINIBATCHES, RATE = 8, 40, 6, 6, 0.1
REFERENCE = ModelReference.named("tests.runtime.stage.test_running_statistics:normalized")
SPEC = OptimizerSpec(name="sgd", options={"lr": RATE, "momentum": 0.0})


class MaskedBatchNorm(nn.BatchNorm1d):
    """With a buffer of a type that Gloo does not know."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.register_buffer("mask", torch.ones(width, dtype=torch.int16))

    def forward(self, input: Tensor) -> Tensor:
        """The same as without the mask."""
        return super().forward(input) * self.mask


def normalized() -> Task:
    module = nn.Sequential(
        nn.Linear(WIDTH, WIDTH),
        nn.Tanh(),
        nn.Linear(WIDTH, WIDTH),
        MaskedBatchNorm(WIDTH),
        nn.Tanh(),
        nn.Linear(WIDTH, 3),
    ).double()
    inputs, targets = _samples()
    return Task(module, (inputs[:BATCH],), targets[:BATCH], F.cross_entropy, _score)


def _score(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def _samples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(SAMPLES, WIDTH, generator=generator, dtype=torch.float64)
    return inputs, torch.arange(SAMPLES) % 3


@pytest.fixture(scope="module")
def session() -> Iterator[ClusterSession]:
    with ClusterSession(capture(REFERENCE), workers=4) as session:
        inputs, targets = _samples()
        session.use_samples([inputs], targets)
        yield session


def _plain(replicas: int, microbatches: int, together: int) -> list[nn.Module]:
    """A copy of the module for every replica, all with the same weights.

    Microbatches go round the replicas; an update is of ``together`` minibatches.
    """
    module = REFERENCE.build().module
    copies = [copy.deepcopy(module) for _ in range(replicas)]
    inputs, targets = _samples()
    minibatches = draw([inputs], targets, random_order(SAMPLES, MINIBATCHES, BATCH))
    parts = [
        part
        for (x,), y in minibatches
        for part in zip(x.chunk(microbatches), y.chunk(microbatches), strict=True)
    ]
    size = together * microbatches
    for first in range(0, len(parts), size):
        for number in range(first, first + size):
            x, y = parts[number]
            (F.cross_entropy(copies[number % replicas](x), y) / size).backward()
        with torch.no_grad():
            for weights in zip(*(module.parameters() for module in copies), strict=True):
                gradients = [weight.grad for weight in weights if weight.grad is not None]
                total = torch.stack(gradients).sum(0)
                for weight in weights:
                    weight -= RATE * total
                    weight.grad = None
    return copies


@pytest.mark.parametrize(
    ("accelerators", "method", "together"),
    [
        ((0, 0, 0), Method(policy="sync"), 3),
        ((0, 1, 1, 2), Method(schedule="1f1b-flush", policy="sync", microbatches=4), 1),
    ],
)
def test_statistics_are_a_replicas_own_until_the_first_ones_are_taken(
    session: ClusterSession, accelerators: tuple[int, ...], method: Method, together: int
) -> None:
    deployment = session.deploy(in_a_row(session.graph, *accelerators), method, SPEC)
    session.run(
        deployment, MINIBATCHES, RunOptions(order=random_order(SAMPLES, MINIBATCHES, BATCH))
    )

    norm = next(op.id for op in session.graph.operators if op.module == "3")
    stage = next(k for k, s in enumerate(deployment.plan.placement.stages) if norm in s.operators)
    workers = deployment.plan.pipeline.stages[stage]
    plain = _plain(len(workers), method.microbatches, together)
    names = ["3.running_mean", "3.running_var", "3.num_batches_tracked"]

    def held(worker: int) -> dict[str, Tensor]:
        state = session.stages_of([worker])[worker]["model"]
        return {name: state[name] for name in names}

    for worker, module in zip(workers, plain, strict=True):
        wanted = module.state_dict()
        for name, value in held(worker).items():
            torch.testing.assert_close(value, wanted[name], rtol=1e-9, atol=1e-12)
    own = [held(worker)["3.running_mean"] for worker in workers]
    assert len({tuple(mean.tolist()) for mean in own}) == len(workers)
    state, _ = session.collect(deployment)
    assert_state(state, plain[0])

    order = torch.arange(SAMPLES).view(-1, BATCH)
    scores = session.evaluate(deployment, len(order), RunOptions(order=order)).scores
    assert scores is not None
    inputs, targets = _samples()
    with torch.no_grad():
        wanted_scores = _score(plain[0].eval()(inputs), targets)
    torch.testing.assert_close(torch.cat(scores), wanted_scores, rtol=1e-9, atol=1e-12)
    for worker in workers:
        for name, value in held(worker).items():
            torch.testing.assert_close(value, plain[0].state_dict()[name], rtol=1e-9, atol=1e-12)


def test_replicas_share_what_passes_change(session: ClusterSession) -> None:
    """And no masks, or weights that are frozen."""
    (program,) = cut_stages(session.captured, in_a_row(session.graph, 0))
    buffers = {a.name: a.changes for a in program.arguments if isinstance(a, Buffer)}
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    assert buffers == {"3.mask": False} | {f"3.{name}": True for name in statistics}


def test_every_run_begins_with_those_of_the_first_replica(session: ClusterSession) -> None:
    """So it does from a checkpoint, which has these alone."""
    deployment = session.deploy(in_a_row(session.graph, 0, 0, 0), Method(policy="sync"), SPEC)

    def mean(worker: int) -> Tensor:
        found: Tensor = session.stages_of([worker])[worker]["model"]["3.running_mean"]
        return found

    session.run(deployment, 3, RunOptions(order=random_order(SAMPLES, 3, BATCH)))
    before = mean(0)
    assert not torch.equal(mean(1), before)
    # The others have no minibatch.
    session.run(deployment, 1, RunOptions(order=random_order(SAMPLES, 1, BATCH)))
    assert not torch.equal(mean(0), before)
    assert torch.equal(mean(1), before)
