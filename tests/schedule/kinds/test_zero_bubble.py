"""Zero-bubble schedules: ZB-H1's figure, ZB-V's order in torch, their bubbles and their memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleZBVZeroBubble
from torch.testing._internal.distributed.fake_pg import FakeStore

from drlpp.errors import InvalidInput
from drlpp.schedule.actions import (
    Action,
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Pass,
)
from drlpp.schedule.analysis.weight_versions import stage_delays
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import build_schedule
from drlpp.schedule.timeline import play
from tests.support.action_text import LETTERS
from tests.support.schedule_texts import folded

FIGURE_3 = """
F0 F1 F2 F3 .. .. .. I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7
.. F0 F1 F2 .. .. I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 F6 I4 W3 F7 I5 W4 I6 W5 I7 W6 W7
.. .. F0 F1 .. I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 F6 I5 W3 F7 I6 W4 I7 W5 W6 W7
.. .. .. F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7
"""
"""Of four stages and eight microbatches, every pass of one length (the paper writes B for I).

The first stage, whose gradients nobody waits for, makes both halves at once.
"""


def halves(action: Pass) -> str:
    """Nobody waits for gradients of the first stage, which makes both halves at once."""
    return "IW" if isinstance(action, Backward) else LETTERS[type(action)]


def units(worker: int, action: Action) -> float:
    return action.units


def most_held(actions: Sequence[Action]) -> int:
    """A microbatch is held until the second half of its backward."""
    held = peak = 0
    for action in actions:
        held += isinstance(action, Forward) - isinstance(action, Backward | BackwardWeight)
        peak = max(peak, held)
    return peak


def test_figure_3() -> None:
    schedule = build_schedule(Pipeline.straight(1, 1, 1, 1), 1, "zb-h1", microbatches=8)
    timed = play(schedule, units)
    rows = [[".."] * round(max(t.end for t in timed)) for _ in schedule.actions]
    for t in timed:
        if isinstance(t.action, Pass):
            starts = range(round(t.start), round(t.end))
            for letter, start in zip(halves(t.action), starts, strict=True):
                rows[t.worker][start] = f"{letter}{t.action.microbatch}"
    assert [" ".join(row) for row in rows] == FIGURE_3.split("\n")[1:-1]


@pytest.mark.parametrize(
    ("stages", "forward", "inputs", "weights"), [(2, 1.0, 1.0, 1.0), (4, 2.0, 2.5, 1.5)]
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


@pytest.mark.parametrize("replicas", [(1, 1, 1, 1), (2, 1), (1, 2, 1)])
@pytest.mark.parametrize("microbatches", [3, 12])
def test_no_stage_holds_more_than_the_first_of_1f1b(
    replicas: tuple[int, ...], microbatches: int
) -> None:
    """Table 2: the memory of 1F1B."""
    pipeline = Pipeline.straight(*replicas)
    schedule = build_schedule(pipeline, 2, "zb-h1", microbatches)
    peaks = {most_held(actions) for actions in schedule.actions.values()}
    assert max(peaks) <= max(pipeline.in_flight())
    if replicas == (1, 1, 1, 1) and microbatches == 12:
        assert peaks == {4}


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one process that stands for several."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    yield
    dist.destroy_process_group()


def theirs(workers: int, microbatches: int) -> list[list[str]]:
    """The order of every rank of torch's schedule, such as ``2F0``, of stage 2."""
    group = dist.new_group(list(range(workers)))
    stages = [
        PipelineStage(nn.Identity(), k, 2 * workers, "cpu", group=group)
        for k in (0, 2 * workers - 1)
    ]
    order = ScheduleZBVZeroBubble(stages, microbatches).pipeline_order
    return [[str(action) for action in order[rank] if action] for rank in range(workers)]


@pytest.mark.parametrize(("workers", "microbatches"), [(2, 12), (3, 1), (3, 4), (4, 12)])
@pytest.mark.usefixtures("alone")
def test_it_is_the_order_of_torch(workers: int, microbatches: int) -> None:
    pipeline = folded(workers)
    schedule = build_schedule(pipeline, 1, "zb-v", microbatches)
    found = []
    for worker in range(workers):
        stages = pipeline.stages_of(worker)
        found.append([])
        for action in schedule.actions[worker]:
            if isinstance(action, Pass):
                # Nobody waits for gradients of the first stage, which makes both halves at once.
                found[-1] += [
                    f"{stages[action.chunk]}{x}{action.microbatch}" for x in halves(action)
                ]
    assert found == theirs(workers, microbatches)


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_no_worker_waits_between_two_updates(workers: int) -> None:
    """But for filling and draining once, by one pass for each worker but the first.

    And every worker holds 2 P microbatches of a stage: as many halves of a worker's share as the
    first worker of 1F1B holds.
    """
    microbatches = 3 * workers
    for minibatches in (1, 5):
        schedule = build_schedule(folded(workers), minibatches, "zb-v", microbatches)
        end = max(timed.end for timed in play(schedule, units))
        assert end == minibatches * microbatches * 6 + workers - 1
        assert {most_held(actions) for actions in schedule.actions.values()} == {2 * workers}


def test_a_kind_and_a_placement_have_to_fit() -> None:
    straight, there_and_back = Pipeline.straight(1, 1, 1, 1), folded(2)
    with pytest.raises(InvalidInput, match="zb-v needs a placement whose accelerators hold two"):
        build_schedule(straight, 1, "zb-v")
    with pytest.raises(InvalidInput, match="a 1f1b-flush schedule is for one stage on each"):
        build_schedule(there_and_back, 1, "1f1b-flush")
    with pytest.raises(InvalidInput, match="a 1f1b schedule is for one stage on each"):
        stage_delays(there_and_back, Method())
