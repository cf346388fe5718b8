"""ZB-H1: the paper's figure, its bubble and its memory."""

from __future__ import annotations

import pytest

from drlpp.schedule.actions import Action, Backward, BackwardInput, BackwardWeight, Forward, Pass
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import Schedule, build_schedule
from drlpp.schedule.timeline import play
from tests.support.action_text import LETTERS

FIGURE_3 = """
F0 F1 F2 F3 .. .. .. I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7
.. F0 F1 F2 .. .. I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 F6 I4 W3 F7 I5 W4 I6 W5 I7 W6 W7
.. .. F0 F1 .. I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 F6 I5 W3 F7 I6 W4 I7 W5 W6 W7
.. .. .. F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7
"""
"""Of four stages and eight microbatches, every pass of one length (the paper writes B for I).

The first stage, whose gradients nobody waits for, makes both halves at once.
"""


def units(worker: int, action: Action) -> float:
    return action.units


def drawn(schedule: Schedule) -> list[str]:
    """A row for each worker, a word for each unit of time."""
    timed = play(schedule, units)
    rows = [[".."] * round(max(t.end for t in timed)) for _ in schedule.actions]
    for t in timed:
        if isinstance(t.action, Pass):
            letters = "IW" if isinstance(t.action, Backward) else LETTERS[type(t.action)]
            for letter, start in zip(letters, range(round(t.start), round(t.end)), strict=True):
                rows[t.worker][start] = f"{letter}{t.action.microbatch}"
    return [" ".join(row) for row in rows]


def test_figure_3() -> None:
    schedule = build_schedule(Pipeline.straight(1, 1, 1, 1), 1, "zb-h1", microbatches=8)
    assert drawn(schedule) == FIGURE_3.split("\n")[1:-1]


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
@pytest.mark.parametrize(
    ("forward", "inputs", "weights"), [(1.0, 1.0, 1.0), (1.0, 1.25, 0.75), (2.0, 2.5, 1.5)]
)
def test_its_bubble_is_that_of_the_paper(
    stages: int, forward: float, inputs: float, weights: float
) -> None:
    """(P − 1)(F + I − W), where 1F1B has (P − 1)(F + I + W), the one a third of the other."""
    cost = {Forward: forward, BackwardInput: inputs, BackwardWeight: weights}
    cost[Backward] = inputs + weights

    def seconds(worker: int, action: Action) -> float:
        return cost.get(type(action), 0.0)

    bubbles = {}
    for kind in ("1f1b-flush", "zb-h1"):
        schedule = build_schedule(Pipeline.straight(*[1] * stages), 1, kind, 3 * stages)
        end = max(timed.end for timed in play(schedule, seconds))
        bubbles[kind] = end - 3 * stages * (forward + inputs + weights)
    assert bubbles["1f1b-flush"] == pytest.approx((stages - 1) * (forward + inputs + weights))
    assert bubbles["zb-h1"] == pytest.approx((stages - 1) * (forward + inputs - weights))
    if forward == inputs == weights:
        assert bubbles["zb-h1"] == pytest.approx(bubbles["1f1b-flush"] / 3)


@pytest.mark.parametrize("replicas", [(1, 1, 1, 1), (2, 1), (1, 2, 1), (2, 2), (1,)])
@pytest.mark.parametrize("microbatches", [1, 3, 12])
def test_no_stage_holds_more_than_the_first_of_1f1b(
    replicas: tuple[int, ...], microbatches: int
) -> None:
    """Table 2: the memory of 1F1B. A microbatch is held until the second half of its backward."""
    pipeline = Pipeline.straight(*replicas)
    schedule = build_schedule(pipeline, 2, "zb-h1", microbatches)
    most = max(pipeline.in_flight())
    for workers in pipeline.stages:
        for worker in workers:
            held, peak = 0, 0
            for action in schedule.actions[worker]:
                held += isinstance(action, Forward)
                held -= isinstance(action, Backward | BackwardWeight)
                peak = max(peak, held)
            assert peak <= most
            if replicas == (1, 1, 1, 1) and microbatches == 12:
                assert peak == most
