"""Computing activations again: the same weights and running statistics, in less memory."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession, RunOptions
from drlpp.runtime.ipc.protocol import RunResult
from drlpp.schedule.actions import Recompute
from drlpp.schedule.method import Method
from drlpp.schedule.schedule import Schedule
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.regularized import BATCH, REFERENCE, SAMPLES, branching, samples
from tests.support.training.pipelines import in_a_row, random_order

MINIBATCHES = 6
SPEC = OptimizerSpec(name="adamw", options={"lr": 0.01, "weight_decay": 0.1})


@pytest.fixture(scope="module")
def session() -> Iterator[ClusterSession]:
    with ClusterSession(capture(REFERENCE), workers=3) as session:
        session.use_samples(*samples())
        yield session


def _train(
    session: ClusterSession, placement: Placement, method: Method
) -> tuple[dict[str, Tensor], Schedule]:
    deployment = session.deploy(placement, method, SPEC)
    order = random_order(SAMPLES, MINIBATCHES, BATCH)
    schedule, _ = session.run(deployment, MINIBATCHES, RunOptions(order=order))
    state, _ = session.collect(deployment)
    return state, schedule


METHODS = {
    "2bw": {"schedule": "1f1b", "policy": "2bw", "accumulate": 4},
    "1f1b-flush": {"schedule": "1f1b-flush", "policy": "sync", "microbatches": 4, "accumulate": 2},
    "stash": {"schedule": "1f1b", "policy": "stash"},
}


@pytest.mark.parametrize(
    ("name", "shape"), zip(METHODS, ["straight", "replicated", "branching"], strict=True)
)
def test_weights_and_statistics_have_the_same_bits(
    session: ClusterSession, name: str, shape: str
) -> None:
    """With dropout, batch normalisation and an LSTM; equal bits, as nothing else may change."""
    options = METHODS[name]
    placement = {
        "straight": in_a_row(session.graph, 0, 1, 2),
        "replicated": in_a_row(session.graph, 0, 0, 1),
        "branching": branching(session.graph, 0, 1, 2),
    }[shape]
    kept, _ = _train(session, placement, Method.model_validate(options))
    method = Method.model_validate({**options, "recompute": True})
    recomputed, schedule = _train(session, placement, method)
    assert any(isinstance(a, Recompute) for actions in schedule.actions.values() for a in actions)
    assert kept.keys() == recomputed.keys()
    for weight, value in kept.items():
        assert torch.equal(recomputed[weight], value), weight
    # Every minibatch or microbatch once; of replicas, those of the first.
    passes = MINIBATCHES * int(options.get("microbatches", 1))
    norm = next(op.id for op in session.graph.operators if op.module == "norm")
    replicas = next(len(s.accelerators) for s in placement.stages if norm in s.operators)
    assert recomputed["norm.num_batches_tracked"] == passes // replicas


SIZE, LAYERS, MICROBATCHES = 1024, 12, 8


class Wide(nn.Module):
    """Activations are large, weights and computation small."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList(torch.ones(SIZE) for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        for scale in self.scales:
            x = torch.sin(x * scale)
        return x


def wide() -> tuple[nn.Module, Tensor]:
    return Wide(), torch.randn(SIZE, SIZE)


def test_less_memory_is_resident() -> None:
    captured = capture(ModelReference.named("tests.runtime.stage.passes.test_recomputation:wide"))
    peaks: dict[bool, list[int]] = {True: [], False: []}
    with ClusterSession(captured, workers=2) as session:
        for recompute in (True, False, True):
            method = Method(
                schedule="gpipe", policy="sync", microbatches=MICROBATCHES, recompute=recompute
            )
            deployment = session.deploy(in_a_row(session.graph, 0, 1), method)
            results: dict[int, RunResult]
            _, results = session.run(deployment, 2)
            peaks[recompute].append(results[0].peak_memory_bytes)
    # The first of two stages keeps the input and the product of every layer, of all microbatches;
    # recomputing, of one. A process does not give back all that it has freed.
    kept = 2 * (LAYERS // 2) * SIZE * SIZE * 4
    saved = kept * (MICROBATCHES - 1) // MICROBATCHES
    assert min(peaks[False]) - min(peaks[True]) > saved / 2
