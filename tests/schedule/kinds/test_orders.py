"""Orders of every kind of schedule: the papers' figures, bubbles and memory, and torch's ZB-V."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
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
    Receive,
    Send,
    Update,
)
from drlpp.schedule.analysis.weight_versions import stage_delays
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import build_schedule
from drlpp.schedule.timeline import play
from tests.support.action_text import LETTERS, parse_actions
from tests.support.schedule_texts import computations, folded, pass_time, starts
from tests.support.strategies.graphs import pipelines

FOUR = (1, 1, 1, 1)

# pipedream, figure 4 (the paper counts workers and minibatches from 1); pipeoptim, figures 1b and
# 1c. With microbatches warm-up is NOAM's in microbatches, and replicas take turns by them. Three
# replicas have no part each of a minibatch of two, so their updates are of two minibatches.
ORDERS = """
1f1b on 1-1-1-1, 8 minibatches of 1, worker 0
    F0 F1 F2 F3 B0 U1 F4 B1 U2 F5 B2 U3 F6 B3 U4 F7 B4 U5 B5 U6 B6 U7 B7 U8
1f1b on 1-1-1-1, 8 minibatches of 1, worker 1
    F0 F1 F2 B0 U1 F3 B1 U2 F4 B2 U3 F5 B3 U4 F6 B4 U5 F7 B5 U6 B6 U7 B7 U8
1f1b on 1-1-1-1, 8 minibatches of 1, worker 3
    F0 B0 U1 F1 B1 U2 F2 B2 U3 F3 B3 U4 F4 B4 U5 F5 B5 U6 F6 B6 U7 F7 B7 U8
1f1b on 1-1-1-1, 2 minibatches of 4, worker 0
    F0.0 F0.1 F0.2 F0.3 B0.0 F1.0 B0.1 F1.1 B0.2 F1.2 B0.3 U1x4 F1.3 B1.0 B1.1 B1.2 B1.3 U2x4
1f1b on 1-1-1-1, 2 minibatches of 4, worker 3
    F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 F0.3 B0.3 U1x4 F1.0 B1.0 F1.1 B1.1 F1.2 B1.2 F1.3 B1.3 U2x4
1f1b on 2-1, 2 minibatches of 4, worker 1
    F0.1 F0.3 B0.1 F1.1 B0.3 U1x4 F1.3 B1.1 B1.3 U2x4
1f1b on 3-1, 2 minibatches of 2, worker 0
    F0.0 F1.1 B0.0 B1.1 U1x4<2
1f1b on 3-1, 2 minibatches of 2, worker 3
    F0.0 B0.0 F0.1 B0.1 U1x2<1 F1.0 B1.0 F1.1 B1.1 U2x2<2
1f1b-flush on 1-1-1-1, 1 minibatches of 6, worker 0
    F0.0 F0.1 F0.2 F0.3 B0.0 F0.4 B0.1 F0.5 B0.2 B0.3 B0.4 B0.5 U1x6
1f1b-flush on 1-1-1-1, 1 minibatches of 6, worker 2
    F0.0 F0.1 B0.0 F0.2 B0.1 F0.3 B0.2 F0.4 B0.3 F0.5 B0.4 B0.5 U1x6
gpipe on 1-1-1-1, 2 minibatches of 4, worker 2
    F0.0 F0.1 F0.2 F0.3 B0.0 B0.1 B0.2 B0.3 U1x4 F1.0 F1.1 F1.2 F1.3 B1.0 B1.1 B1.2 B1.3 U2x4
gpipe on 1-1-1-1, 3 minibatches of 1, worker 2
    F0 B0 U1 F1 B1 U2 F2 B2 U3
gpipe on 2-1, 2 minibatches of 3, worker 1
    F0.1 B0.1 U1x3 F1.0 F1.2 B1.0 B1.2 U2x3
forward on 2-1, 3 minibatches of 1, worker 0
    F0 F2
"""
_ROW = re.compile(r"(\S+) on (\S+), (\d+) minibatches of (\d+), worker (\d+)\n +(.*)\n")


@pytest.mark.parametrize(
    ("kind", "shape", "count", "parts", "worker", "order"), _ROW.findall(ORDERS)
)
def test_orders(kind: str, shape: str, count: str, parts: str, worker: str, order: str) -> None:
    pipeline = Pipeline.straight(*map(int, shape.split("-")))
    schedule = build_schedule(pipeline, int(count), kind, int(parts))
    assert computations(schedule, int(worker)) == parse_actions(order)


def test_pipedream_figure_8_times() -> None:
    """Passes of the first stage take two units, of the second one: both stages keep pace."""
    schedule = build_schedule(Pipeline.straight(2, 1), 40)
    forward = backward = {0: 2.0, 1: 1.0}
    one = starts(schedule, 0, forward, backward)
    last = starts(schedule, 2, forward, backward)
    # F4 waits for the all-reduce, which B1 joins on the second worker at 8.
    assert one[:4] == [("F0", 0), ("F2", 2), ("B0", 4), ("F4", 8)]
    assert last[:4] == [("F0", 2), ("B0", 3), ("F1", 4), ("B1", 5)]
    steady = [start for name, start in last if name in {"F10", "F30"}]
    assert steady[1] - steady[0] == 20 * 2


@pytest.mark.parametrize("kind", ["gpipe", "1f1b-flush"])
def test_a_flush_costs_the_known_bubble(kind: str) -> None:
    """M microbatches on D stages take (M + D − 1) times a microbatch (forward + backward)."""
    schedule = build_schedule(Pipeline.straight(*FOUR), 3, kind, microbatches=4)
    assert max(timed.end for timed in play(schedule, pass_time)) == 3 * (4 + 4 - 1) * 2


def test_data_parallelism_is_one_replicated_stage() -> None:
    schedule = build_schedule(Pipeline.straight(3), 6)
    assert schedule.actions[1] == parse_actions("F1 B1 A1:0,1,2 U1x3<3 F4 B4 A2:0,1,2 U2x3<6")


@given(
    pipelines(),
    st.integers(1, 6),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(0, 2),
    st.booleans(),
)
def test_microbatches_are_scheduled_as_smaller_minibatches_that_accumulate(
    pipeline: Pipeline,
    minibatches: int,
    microbatches: int,
    accumulate: int,
    per_link: int,
    recompute: bool,
) -> None:
    """So what holds for accumulated minibatches holds for microbatches."""
    options = {"in_flight_per_link": per_link, "recompute": recompute}
    divided = build_schedule(
        pipeline, minibatches, microbatches=microbatches, accumulate=accumulate, **options
    )
    smaller = build_schedule(
        pipeline, minibatches * microbatches, accumulate=accumulate * microbatches, **options
    )

    def named_anew(action: Action) -> Action:
        match action:
            case Pass(part, _):
                return type(action)(*divmod(part, microbatches))
            case Update(_, _, through):
                return replace(action, through=through // microbatches)
            case Send(message, _) | Receive(message, _):
                minibatch, microbatch = divmod(message.minibatch, microbatches)
                message = replace(message, minibatch=minibatch, microbatch=microbatch)
                return replace(action, message=message)
            case _:
                return action

    assert divided.actions == {
        worker: tuple(map(named_anew, actions)) for worker, actions in smaller.actions.items()
    }


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
