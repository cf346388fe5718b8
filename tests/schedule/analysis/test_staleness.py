"""The line before asynchronous training, against what is counted in schedules."""

from __future__ import annotations

import re

import pytest

from drlpp.schedule.analysis.staleness import staleness_text, usual_staleness
from drlpp.schedule.analysis.weight_versions import stage_delay
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline

FOUR = Pipeline.straight(1, 1, 1, 1)


def test_how_late_gradients_are_is_said_with_its_cost() -> None:
    text = staleness_text(FOUR, Method(), 16) or ""
    assert "on stages 0 to 3 come 3, 2, 1 and 0 updates, which takes about 1.5 times" in text
    assert text.endswith(
        "with microbatches=4 it would be one at most; with schedule=1f1b-flush none, as in plain "
        "PyTorch"
    )
    divided = staleness_text(FOUR, Method(microbatches=4), 16) or ""
    assert "come 1, 1, 1 and 0 updates at most, 0.75, 0.5, 0.25 and 0 on average, " in divided
    # Whatever the schedule has in between: all stages are one late.
    doubled = staleness_text(FOUR, Method(policy="2bw", microbatches=4), 16) or ""
    assert doubled.startswith("gradients are of the weights before the newest, on every stage")
    assert "microbatches" not in (staleness_text(FOUR, Method(), 2) or "")
    flushed = Method(schedule="1f1b-flush", policy="sync", microbatches=4)
    assert staleness_text(FOUR, flushed, 16) is None
    assert staleness_text(Pipeline.straight(1), Method(), 16) is None


def test_with_microbatches_nothing_is_usually_staler_than_one() -> None:
    assert [usual_staleness(Method(), count) for count in (1, 2, 4)] == [0, 1, 3]
    assert usual_staleness(Method(microbatches=4), 4) == 1
    assert usual_staleness(Method(microbatches=2), 4) == 2
    assert usual_staleness(Method(schedule="1f1b-flush", policy="sync", microbatches=4), 4) == 0


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1), (2, 1), (1, 1, 3), (3, 2, 1)])
def test_the_microbatches_that_it_names_suffice(shape: tuple[int, ...], accumulate: int) -> None:
    pipeline, method = Pipeline.straight(*shape), Method(accumulate=accumulate)
    text = staleness_text(pipeline, method, 12)
    assert text is not None
    counted = [stage_delay(method.schedule_for(pipeline, 60), stage) for stage in range(len(shape))]
    assert (max(counted) > 1) == ("microbatches" in text)
    for number in re.findall(r"microbatches=(\d+)", text):
        assert 12 % int(number) == 0
        divided = method.model_copy(update={"microbatches": int(number)})
        schedule = divided.schedule_for(pipeline, 20)
        assert max(stage_delay(schedule, stage) for stage in range(len(shape))) == 1
