"""The runtime against plain PyTorch: the user's own module, no capture, no stages, no schedule.

Nothing here is shared with the runtime or the reference executor. Synchronous methods have to give
the weights of a plain training loop; `test_mutations.py` has the rules of asynchronous ones.
"""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession, RunOptions
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.in_turns import in_turns, words

MINIBATCHES, BATCH, SAMPLES, WIDTH = 9, 8, 40, 6


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
    with ClusterSession(captured, workers=3) as session:
        session.use_samples([_inputs()], _targets(SAMPLES))
        yield session


def _inputs() -> Tensor:
    return torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(5)).double()


def _trained_plainly(build: Callable[..., torch.optim.Optimizer], together: int) -> nn.Module:
    """Train the module in an ordinary loop, with an update for so many minibatches together."""
    module = (
        ModelReference.named("tests.runtime.reference.test_plain_training:unusual").build().module
    )
    plain = build([weight for weight in module.parameters() if weight.requires_grad])
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


OPTIMIZERS: dict[str, tuple[OptimizerSpec, Callable[[list[Tensor]], torch.optim.Optimizer]]] = {
    "sgd": (
        OptimizerSpec(name="sgd", options={"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
        lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9, weight_decay=0.1),
    ),
    "adamw": (
        OptimizerSpec(name="adamw", options={"lr": 0.01, "weight_decay": 0.1}),
        lambda weights: torch.optim.AdamW(weights, lr=0.01, weight_decay=0.1),
    ),
}


def _assert_equal(found: dict[str, Tensor], module: nn.Module) -> None:
    wanted = module.state_dict()
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-12, msg=name)


TRAINED = [
    ((0,), Method(policy="sync"), 1),
    ((0, 0, 0), Method(policy="sync"), 3),
    ((0,), Method(policy="pipeoptim", microbatches=4), 1),
    ((0,), Method(policy="vanilla", microbatches=2, accumulate=3), 3),
    ((0, 0), Method(policy="stash", microbatches=4), 1),
    ((0, 0, 0), Method(policy="sync", microbatches=2, clip_norm=1e9), 2),
    ((0, 1, 2), Method(schedule="gpipe", policy="sync"), 1),
    ((0, 1, 2), Method(schedule="gpipe", policy="sync", microbatches=4), 1),
    ((0, 0, 1), Method(schedule="gpipe", policy="sync", microbatches=2), 1),
    ((0, 1, 2), Method(schedule="zb-h1", policy="sync", microbatches=4), 1),
    ((0, 1, 1), Method(schedule="zb-h1", policy="sync", microbatches=2, accumulate=3), 3),
]


@pytest.mark.parametrize(("trained", "optimizer"), in_turns(TRAINED, OPTIMIZERS), ids=words)
def test_methods_without_staleness_equal_a_plain_loop(
    session: ClusterSession, trained: tuple[tuple[int, ...], Method, int], optimizer: str
) -> None:
    accelerators, method, together = trained
    operators = len(session.graph)
    stages = max(accelerators) + 1
    placement = Placement.from_assignment(
        [stages * i // operators for i in range(operators)], accelerators
    )
    spec, build = OPTIMIZERS[optimizer]
    deployment = session.deploy(placement, method, spec)
    session.run(deployment, MINIBATCHES, RunOptions(order=_order()))
    state, _ = session.collect(deployment)
    module = _trained_plainly(build, together)
    _assert_equal(state, module)
