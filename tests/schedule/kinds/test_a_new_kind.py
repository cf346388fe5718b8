"""A kind that only orders computations anew needs no more than its order, and the registry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from drlpp.schedule.actions import Backward, Computation, Forward
from drlpp.schedule.analysis.weight_versions import stage_delays
from drlpp.schedule.kinds.kind import ScheduleKind, Share
from drlpp.schedule.kinds.registry import SCHEDULE_KINDS
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import build_schedule, in_order
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
