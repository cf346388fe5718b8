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
from drlpp.schedule.analysis.weight_versions import stage_delay, stage_delays
from drlpp.schedule.kinds.alternating import ONE_F_ONE_B
from drlpp.schedule.kinds.kind import ScheduleKind, Share
from drlpp.schedule.kinds.registry import SCHEDULE_KINDS
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import build_schedule, in_order
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.forked import largest_difference, order
from tests.support.schedule_texts import computations, written

EAGER = ScheduleKind(
    name="eager-1f1b",
    summary="1F1B with a deeper warm-up, so that messages are on their way meanwhile",
    order=ONE_F_ONE_B.order,
    flushes=False,
    in_flight=lambda pipeline, per_link: pipeline.in_flight(1),
)


def _last_first(share: Share) -> Iterator[Computation]:
    for parts, update in share.updates():
        yield from (Forward(*part) for part in parts)
        yield from (Backward(*part) for part in reversed(parts))
        yield update


LAST_FIRST = ScheduleKind(
    name="last-first",
    summary="GPipe, with the backwards of the last microbatches first",
    order=_last_first,
    flushes=True,
    takes_microbatches=True,
)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (EAGER, LAST_FIRST):
        monkeypatch.setitem(SCHEDULE_KINDS, kind.name, kind)


def test_methods_are_checked_by_what_the_kind_can_do() -> None:
    assert choose_method(None, {"schedule": "eager-1f1b"}) == Method(schedule="eager-1f1b")
    flushed = choose_method(None, {"schedule": "last-first", "microbatches": 4})
    assert flushed.policy == "sync"
    for method, message in [
        ({"schedule": "eager-1f1b", "microbatches": 2}, "use 1f1b or gpipe or .* or last-first"),
        ({"schedule": "eager-1f1b", "in_flight_per_link": 1}, "as its order needs, .* use 1f1b"),
        ({"schedule": "last-first", "policy": "stash"}, "no meaning on schedule last-first"),
    ]:
        with pytest.raises(ValueError, match=message):
            Method.model_validate(method)


def test_the_orders_are_written_with_all_messages() -> None:
    pipeline = Pipeline.straight(1, 1)
    eager = build_schedule(pipeline, 4, "eager-1f1b")
    assert computations(eager, 0) == written("F0 F1 F2 B0 U1 F3 B1 U2 B2 U3 B3 U4")
    assert eager.actions == build_schedule(pipeline, 4, in_flight_per_link=1).actions
    last_first = build_schedule(Pipeline.straight(2, 1), 1, "last-first", 4, recompute=True)
    assert computations(last_first, 2) == written(
        "F0.0 F0.1 F0.2 F0.3 B0.3 R0.2 B0.2 R0.1 B0.1 R0.0 B0.0 U1x4"
    )
    assert len(list(in_order(last_first))) == sum(map(len, last_first.actions.values()))


def test_delays_of_the_steady_state_are_those_that_are_counted() -> None:
    for shape in ((1, 1, 1, 1), (3, 2, 1)):
        pipeline, method = Pipeline.straight(*shape), Method(schedule="eager-1f1b")
        schedule = method.schedule_for(pipeline, 60)
        counted = [stage_delay(schedule, stage) for stage in range(len(shape))]
        assert stage_delays(pipeline, method) == counted
    assert stage_delays(Pipeline.straight(1, 1, 1, 1), method) == [6, 4, 2, 0]
    flushed = Method(schedule="last-first", policy="sync", microbatches=3)
    assert stage_delays(Pipeline.straight(2, 1), flushed) == [0, 0]


def test_workers_train_with_them() -> None:
    captured = capture(ModelReference.named("tests.support.models.small:perceptron", layers=2))
    sgd = OptimizerSpec(name="sgd", options={"lr": 0.05, "momentum": 0.9})
    operators = len(captured.graph)
    placement = Placement.from_assignment([3 * i // operators for i in range(operators)], (0, 1, 2))
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(40, 16, generator=generator)
    samples = [inputs], torch.randint(0, 5, (40,), generator=generator)
    run = RunOptions(order=order(12))
    flushed = Method(schedule="gpipe", policy="sync", microbatches=4)
    with ClusterSession(captured, workers=3) as session:
        session.use_samples(*samples)
        for method in (
            Method(policy="stash").model_copy(update={"schedule": "eager-1f1b"}),
            flushed.model_copy(update={"schedule": "last-first"}),
        ):
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
