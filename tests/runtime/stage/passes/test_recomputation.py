"""Computing activations again: the same weights and running statistics, in less memory."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from drlpp.capturing.capture import capture
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession, RunOptions
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
