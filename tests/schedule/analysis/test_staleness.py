"""The line before asynchronous training, against what is counted in schedules."""

from __future__ import annotations

import re

import pytest

from drlpp.schedule.analysis.staleness import (
    outcome_text,
    samples_needed,
    samples_of_larger,
    staleness_text,
)
from drlpp.schedule.analysis.weight_versions import stage_delay
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline

FOUR = Pipeline.straight(1, 1, 1, 1)


def test_whole_minibatches_are_late_by_eq_4() -> None:
    assert staleness_text(FOUR, Method(), 16) == (
        "between the forward and the backward of a minibatch on stages 0 to 3 come 3, 2, 1 and 0 "
        "updates, which takes some 1.5 to 1.8 times the samples of plain PyTorch to the same loss "
        "(decoders of 0.3 and 2.8 million weights: docs/methods.md); with microbatches=4 it would "
        "be one at most; with schedule=1f1b-flush none, as in plain PyTorch"
    )


def test_microbatches_are_late_by_a_part_of_an_update() -> None:
    assert staleness_text(FOUR, Method(microbatches=4), 16) == (
        "between the forward and the backward of a minibatch on stages 0 to 3 come 1, 1, 1 and 0 "
        "updates at most, 0.75, 0.5, 0.25 and 0 on average, which takes some 1.1 to 1.2 times the "
        "samples of plain PyTorch to the same loss (decoders of 0.3 and 2.8 million weights: "
        "docs/methods.md); with schedule=1f1b-flush none, as in plain PyTorch"
    )


@pytest.mark.parametrize(
    ("pipeline", "method"),
    [
        (Pipeline.straight(1), Method()),
        (Pipeline.straight(3), Method(policy="sync", microbatches=2)),
        (FOUR, Method(schedule="1f1b-flush", policy="sync", microbatches=4)),
    ],
)
def test_nothing_is_said_where_nothing_is_late(pipeline: Pipeline, method: Method) -> None:
    assert staleness_text(pipeline, method, 16) is None
    assert outcome_text(pipeline, method, 10.0) is None


def test_a_speed_is_worth_less_by_the_samples_that_staleness_costs() -> None:
    text = outcome_text(FOUR, Method(microbatches=4), 10.0)
    assert text is not None
    worth = f"{10.0 / samples_of_larger(0.75):.1f} to {10.0 / samples_needed(0.75):.1f}"
    assert text.startswith(
        "10.0 minibatches/s, the gradients of the latest stage being 0.75 updates late, are worth "
        f"some {worth} of plain PyTorch"
    )


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


def test_a_minibatch_of_few_samples_is_not_told_to_be_divided() -> None:
    text = staleness_text(FOUR, Method(), 2)
    assert text is not None
    assert "microbatches" not in text
