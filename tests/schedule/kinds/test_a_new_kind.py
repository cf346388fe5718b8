"""A kind that only orders computations anew needs no more than its order, and the registry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession, Minibatches, RunOptions, run_reference
from drlpp.schedule.actions import Backward, Computation, Forward
from drlpp.schedule.analysis.weight_versions import stage_delays
from drlpp.schedule.kinds.kind import ScheduleKind, Share
from drlpp.schedule.kinds.registry import SCHEDULE_KINDS
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import build_schedule, in_order
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.forked import largest_difference, order
from tests.support.schedule_texts import computations, written


def _last_first(share: Share) -> Iterator[Computation]:
    for parts, update in share.updates():
        yield from (Forward(*part) for part in parts)
        yield from (Backward(*part) for part in reversed(parts))
        yield update


LAST_FIRST = ScheduleKind(
    name="last-first",
    order=_last_first,
    flushes=True,
)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEDULE_KINDS, LAST_FIRST.name, LAST_FIRST)


def test_it_is_chosen_checked_and_written_with_all_messages() -> None:
    flushed = choose_method(None, {"schedule": "last-first", "microbatches": 3})
    assert flushed.policy == "sync"
    for wrong in ({"policy": "stash"}, {"policy": "sync", "in_flight_per_link": 1}):
        with pytest.raises(ValueError, match=r"no meaning on .*; use"):
            Method.model_validate({"schedule": "last-first", **wrong})
    pipeline = Pipeline.straight(2, 1)
    assert stage_delays(pipeline, flushed) == [0, 0]
    schedule = build_schedule(pipeline, 1, "last-first", 4, recompute=True)
    assert computations(schedule, 2) == written(
        "F0.0 F0.1 F0.2 F0.3 B0.3 R0.2 B0.2 R0.1 B0.1 R0.0 B0.0 U1x4"
    )
    assert len(list(in_order(schedule))) == sum(map(len, schedule.actions.values()))


def test_workers_train_with_it() -> None:
    captured = capture(ModelReference.named("tests.support.models.small:perceptron", layers=2))
    sgd = OptimizerSpec(name="sgd", options={"lr": 0.05, "momentum": 0.9})
    operators = len(captured.graph)
    placement = Placement.from_assignment([3 * i // operators for i in range(operators)], (0, 1, 2))
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(40, 16, generator=generator)
    samples = [inputs], torch.randint(0, 5, (40,), generator=generator)
    run = RunOptions(order=order(12))
    method = Method(schedule="last-first", policy="sync", microbatches=4)
    with ClusterSession(captured, workers=3) as session:
        session.use_samples(*samples)
        deployment = session.deploy(placement, method, sgd)
        session.run(deployment, 12, run)
        found, _ = session.collect(deployment)
    wanted = run_reference(
        captured,
        placement,
        Minibatches(*samples),
        12,
        method=method,
        optimizer=sgd,
        options=run,
    ).state
    assert largest_difference(found, captured.state) > 1e-3, "training changed nothing"
    assert largest_difference(found, wanted) < 1e-5
