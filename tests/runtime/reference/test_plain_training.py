"""The runtime against plain PyTorch: the user's own module, no capture, no stages, no schedule.

Nothing here is shared with the runtime or the reference executor. Synchronous methods have to give
the weights of a plain training loop; `test_mutations.py` has the rules of asynchronous ones.
"""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.capturing.capture import capture
from drlpp.capturing.graph import OpGraph
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession, RunOptions
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.training.pipelines import assert_state

WORKERS, MINIBATCHES, BATCH, SAMPLES, WIDTH = 4, 9, 8, 40, 6


class Unusual(nn.Module):
    """What is easily got wrong in a captured graph: a layer or weight for each of these."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.spectrum = nn.Parameter(torch.randn(WIDTH // 2 + 1, dtype=torch.complex128))
        self.unreached = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.linspace(0.5, 1.5, WIDTH), persistent=False)
        self.tied = nn.Linear(WIDTH, WIDTH)
        self.same = nn.Linear(WIDTH, WIDTH)
        self.same.weight = self.tied.weight
        self.last = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        x = self.frozen(x) + self.unreached(x).detach() * self.mask
        x = torch.fft.irfft(torch.fft.rfft(x) * self.spectrum, n=WIDTH)
        x = self.same(torch.tanh(self.tied(x)))
        return self.last(torch.tanh(x))


def unusual() -> Task:
    module = Unusual().double()
    return Task(module, (torch.randn(BATCH, WIDTH).double(),), _targets(BATCH), F.cross_entropy)


def _targets(count: int) -> Tensor:
    return torch.arange(count) % 3


@pytest.fixture(scope="module")
def session() -> Iterator[ClusterSession]:
    captured = capture(ModelReference.named("tests.runtime.reference.test_plain_training:unusual"))
    with ClusterSession(captured, workers=WORKERS) as session:
        session.use_samples([_inputs()], _targets(SAMPLES))
        yield session


def _inputs() -> Tensor:
    return torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(5)).double()


def _trained_plainly(together: int) -> nn.Module:
    """Train the module in an ordinary loop, with an update for so many minibatches together."""
    module = (
        ModelReference.named("tests.runtime.reference.test_plain_training:unusual").build().module
    )
    trained = [weight for weight in module.parameters() if weight.requires_grad]
    plain = torch.optim.AdamW(trained, lr=0.01, weight_decay=0.1)
    for step in range(0, MINIBATCHES, together):
        # Data parallelism updates once for the minibatches of all replicas.
        indices = _order()[step : step + together].flatten()
        plain.zero_grad()
        F.cross_entropy(module(_inputs()[indices]), _targets(SAMPLES)[indices]).backward()
        plain.step()
    return module


def _order() -> Tensor:
    generator = torch.Generator().manual_seed(6)
    return torch.randint(0, SAMPLES, (MINIBATCHES, BATCH), generator=generator)


SPEC = OptimizerSpec(name="adamw", options={"lr": 0.01, "weight_decay": 0.1})


@st.composite
def placements(draw: st.DrawFn, graph: OpGraph) -> Placement:
    """Any cut into stages along the graph's edges, on any workers, with any replicas."""
    stages = draw(st.integers(1, WORKERS))
    stage_of: list[int] = []
    contiguous = draw(st.booleans())
    for operator in graph.operators:
        read = [stage_of[edge.source] for edge in graph.edges if edge.target == operator.id]
        earliest = max(stage_of if contiguous else read, default=0)
        nearest = st.integers(earliest, min(earliest + 1, stages - 1))
        stage_of.append(draw(nearest if contiguous else st.integers(earliest, stages - 1)))
    used = sorted(set(stage_of))
    workers = draw(st.permutations(range(WORKERS)))[: draw(st.integers(len(used), WORKERS))]
    holders = [*used, *(draw(st.sampled_from(used)) for _ in workers[len(used) :])]
    stage_of_worker = dict(zip(workers, holders, strict=True))
    return Placement.model_validate(
        {
            "stages": [
                {
                    "operators": tuple(i for i, k in enumerate(stage_of) if k == stage),
                    "accelerators": tuple(
                        w for w, k in sorted(stage_of_worker.items()) if k == stage
                    ),
                }
                for stage in used
            ]
        }
    )


@st.composite
def methods(draw: st.DrawFn, placement: Placement) -> tuple[Method, int]:
    """A synchronous method, and how many minibatches make one of its updates."""
    accumulate = draw(st.integers(1, 3))
    recompute = draw(st.booleans())
    kinds = ["gpipe", "1f1b-flush", "zb-h1"] + ["1f1b"] * (len(placement.stages) == 1)
    kind = draw(st.sampled_from(kinds))
    microbatches = draw(st.sampled_from([1, 2, 4]))
    method = Method(
        schedule=kind,
        policy="sync",
        microbatches=microbatches,
        accumulate=accumulate,
        recompute=recompute,
    )
    replicas = len(placement.stages[0].accelerators) if kind == "1f1b" else 1
    # Data parallelism gives every replica a part for each update.
    return method, accumulate * -(-replicas // (accumulate * microbatches))


@given(data=st.data())
@settings(max_examples=8, derandomize=True, database=None)
def test_synchronous_methods_equal_a_plain_loop_on_any_placement(
    session: ClusterSession, data: st.DataObject
) -> None:
    placement = data.draw(placements(session.graph))
    method, together = data.draw(methods(placement))
    event(f"{len(placement.stages)} stages")
    event(str(method.schedule))
    # Weight decay moves even a weight whose gradient is zero, but not one that has none.
    deployment = session.deploy(placement, method, SPEC)
    session.run(deployment, MINIBATCHES, RunOptions(order=_order()))
    state, _ = session.collect(deployment)
    assert_state(state, _trained_plainly(together))
    for workers in deployment.plan.pipeline.stages:
        held = session.stages_of(workers)
        for worker in workers[1:]:
            for name, value in held[worker]["model"].items():
                assert torch.equal(value, held[workers[0]]["model"][name]), (worker, name)
