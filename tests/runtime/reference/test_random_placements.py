"""Synchronous methods against a plain loop, on whatever placement hypothesis comes up with."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from drlpp.capturing.capture import capture
from drlpp.capturing.graph import OpGraph
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession, RunOptions
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.gathering import BATCH, REFERENCE, SAMPLES, objective, samples
from tests.support.training.pipelines import (
    assert_state,
    draw,
    random_order,
    train,
    trained_parameters,
)

WORKERS, MINIBATCHES = 4, 7


@pytest.fixture(scope="module")
def session() -> Iterator[ClusterSession]:
    with ClusterSession(capture(REFERENCE), workers=WORKERS) as session:
        session.use_samples(*samples())
        yield session


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
@settings(max_examples=10, derandomize=True, database=None)
def test_synchronous_methods_equal_a_plain_loop(
    session: ClusterSession, data: st.DataObject
) -> None:
    placement = data.draw(placements(session.graph))
    method, together = data.draw(methods(placement))
    event(f"{len(placement.stages)} stages")
    event(str(method.schedule))
    # Weight decay moves even a weight whose gradient is zero, but not one that has none.
    spec = OptimizerSpec(name="adamw", options={"lr": 0.01, "weight_decay": 0.1})
    order = random_order(SAMPLES, MINIBATCHES, BATCH)
    deployment = session.deploy(placement, method, spec)
    session.run(deployment, MINIBATCHES, RunOptions(order=order))
    state, _ = session.collect(deployment)

    module = REFERENCE.build().module
    optimizer = torch.optim.AdamW(trained_parameters(module), lr=0.01, weight_decay=0.1)
    train(module, objective, optimizer, draw(*samples(), order), together=together)
    assert_state(state, module)
    for workers in deployment.plan.pipeline.stages:
        held = session.stages_of(workers)
        for worker in workers[1:]:
            for name, value in held[worker]["model"].items():
                assert torch.equal(value, held[workers[0]]["model"][name]), (worker, name)
