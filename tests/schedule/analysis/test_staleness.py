"""The line before asynchronous training, against what is counted in schedules."""

from __future__ import annotations

import re

import pytest

from drlpp.schedule.analysis.samples_needed import samples_needed, samples_of_larger
from drlpp.schedule.analysis.staleness import outcome_text, staleness_text, usual_staleness
from drlpp.schedule.analysis.weight_versions import stage_delay
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.weight_policies import WEIGHT_POLICIES

FOUR = Pipeline.straight(1, 1, 1, 1)


def test_whole_minibatches_are_late_by_eq_4() -> None:
    assert staleness_text(FOUR, Method(), 16) == (
        "between the forward and the backward of a minibatch on stages 0 to 3 come 3, 2, 1 and 0 "
        "updates, which takes some 1.5 to 2.3 times the samples of plain PyTorch to the same loss "
        "(decoders of 0.3 and 2.8 million weights, with AdamW, at their own best learning rates "
        "and at plain PyTorch's: docs/methods.md); with microbatches=4 it would be one at most; "
        "with schedule=1f1b-flush none, as in plain PyTorch"
    )


def test_microbatches_are_late_by_a_part_of_an_update() -> None:
    assert staleness_text(FOUR, Method(microbatches=4), 16) == (
        "between the forward and the backward of a minibatch on stages 0 to 3 come 1, 1, 1 and 0 "
        "updates at most, 0.75, 0.5, 0.25 and 0 on average, which takes some 1.1 to 1.2 times the "
        "samples of plain PyTorch to the same loss (decoders of 0.3 and 2.8 million weights, "
        "with AdamW, at their own best learning rates and at plain PyTorch's: docs/methods.md); "
        "with schedule=1f1b-flush none, as in plain PyTorch"
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
    least = samples_needed(0.75)
    worth = f"{10.0 / samples_of_larger(0.75, at_plain_rate=True):.1f} to {10.0 / least:.1f}"
    assert text.startswith(
        "10.0 minibatches/s here, with gradients up to 0.75 updates late on average, teach as much "
        f"as {worth} minibatches/s of plain PyTorch ("
    )


def test_with_microbatches_nothing_is_usually_staler_than_one() -> None:
    assert [usual_staleness(Method(), count) for count in (1, 2, 4)] == [0, 1, 3]
    assert usual_staleness(Method(microbatches=4), 4) == 1
    assert usual_staleness(Method(microbatches=2), 4) == 2
    assert usual_staleness(Method(schedule="1f1b-flush", policy="sync", microbatches=4), 4) == 0


def test_other_policies_cost_what_they_do() -> None:
    stashed = staleness_text(FOUR, Method(policy="stash"), 16)
    assert stashed is not None
    assert "some 2.0 to 2.6 times the samples" in stashed
    assert "(a decoder of 0.3 million weights, with AdamW, at " in stashed
    doubled = Method(policy="2bw", microbatches=4)
    text, worth = staleness_text(FOUR, doubled, 16), outcome_text(FOUR, doubled, 10.0)
    assert text is not None
    assert worth is not None
    # Whatever the schedule has in between: all stages are one late.
    assert text.startswith(
        "gradients are of the weights before the newest, on every stage, which takes some 1.6 to "
        "1.8 times the samples"
    )
    assert worth.startswith(
        "10.0 minibatches/s here, with gradients one update late, teach as much as 5.6 to 6.3 "
    )


@pytest.mark.parametrize("policy", [name for name in WEIGHT_POLICIES if name != "sync"])
def test_more_staleness_never_needs_fewer_samples_nor_does_another_rate(policy: str) -> None:
    lateness = (0, 0.5, 1, 2, 3, 7, 15)
    needed = [samples_needed(s, policy, at_plain_rate=True) for s in lateness]
    best = [samples_needed(s, policy) for s in lateness]
    assert needed == sorted(needed)
    assert best == sorted(best)
    assert best[0] >= 1
    assert all(one <= other for one, other in zip(best, needed, strict=True))


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
