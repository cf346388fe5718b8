"""torch's own simulator of communication plays what we export, and no rank waits for ever."""

import re
from collections import deque
from itertools import product

import pytest
from torch.distributed.pipelining import schedules

from drlpp.errors import InvalidInput
from drlpp.exporting.torch_schedule import (
    Rows,
    chain_schedule,
    computations,
    csv_text,
    with_messages,
)
from drlpp.schedule.actions import Pass
from drlpp.schedule.method import Method
from drlpp.schedule.schedule import Schedule
from drlpp.torch_versions import pipelines_take_functions

if not pipelines_take_functions():
    pytest.skip("this torch has no custom functions", allow_module_level=True)

FLUSHED = [
    Method(schedule="gpipe", policy="sync", microbatches=4),
    Method(schedule="1f1b-flush", policy="sync", microbatches=4),
    Method(schedule="1f1b-flush", policy="sync", microbatches=2, accumulate=3),
    Method(schedule="zb-h1", policy="sync", microbatches=6),
    Method(schedule="zb-h1", policy="sync", microbatches=3, accumulate=2),
]
ASYNCHRONOUS = [
    Method(),
    Method(policy="stash", in_flight_per_link=1),
    Method(policy="vanilla", accumulate=3),
    Method(microbatches=4),
]
STAGES = (1, 2, 3, 4)
WINDOW = 12


def exported(method: Method, stages: int) -> Rows:
    minibatches = method.accumulate if method.flushes else WINDOW
    schedule = chain_schedule(stages, method, minibatches)
    return with_messages(computations(schedule, updates=not method.flushes))


def cells_of(text: str) -> Rows:
    return [line.split(",") for line in text.splitlines()]


def simulated_by_torch(rows: Rows) -> None:
    """Raises where the schedule does not progress. It does not know updates."""
    order = {
        rank: [schedules._Action.from_str(cell) for cell in row if "REDUCE_GRAD" not in cell]
        for rank, row in enumerate(rows)
    }
    played = schedules._simulate_comms_compute(order, lambda stage: stage, len(rows))
    done = sum(action is not None for row in played.values() for action in row)
    assert done == sum(len(row) for row in order.values())


def meet(rows: Rows) -> None:
    """Play the rows where a send ends when its receive begins, and neither is overtaken.

    torch's simulator lets a send end at once, as Gloo does and NCCL does not.
    """
    left = [deque(row) for row in rows]
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(left):
            while row and not re.search("SEND|RECV", row[0]):
                row.popleft()
                moved = True
            if not row or "SEND" not in row[0]:
                continue
            stage, kind, part = re.fullmatch(r"(\d+)SEND_(F|B)(\d+)", row[0]).groups()
            other = rank + (1 if kind == "F" else -1)
            if left[other] and left[other][0] == f"{other}RECV_{kind}{part}":
                assert int(stage) == rank
                row.popleft()
                left[other].popleft()
                moved = True
    assert not any(left), [row[0] for row in left if row]


@pytest.mark.parametrize(("method", "stages"), list(product([*FLUSHED, *ASYNCHRONOUS], STAGES)))
def test_nobody_waits_for_ever(method: Method, stages: int) -> None:
    rows = cells_of(csv_text(exported(method, stages)))
    assert len(rows) == stages
    simulated_by_torch(rows)
    meet(rows)
    order = {k: [schedules._Action.from_str(cell) for cell in row] for k, row in enumerate(rows)}
    parts = method.microbatches * (method.accumulate if method.flushes else WINDOW)
    schedules._validate_schedule(order, stages, stages, parts)


def test_a_lost_message_is_found() -> None:
    rows = exported(Method(), 3)
    rows[1].remove("1SEND_F5")
    with pytest.raises(ValueError, match="not progressing"):
        simulated_by_torch(rows)
    with pytest.raises(AssertionError):
        meet(rows)


def test_the_order_of_our_workers_would_not_meet() -> None:
    """Which is why torch places the messages: we send behind a pass and receive before one."""
    rows = []
    for stage, row in enumerate(computations(chain_schedule(2, Method(), 6), updates=False)):
        cells = []
        for cell in row:
            kind, part = cell[1], cell[2:]
            neighbour = stage == (1 if kind == "F" else 0)
            cells += [f"{stage}RECV_{kind}{part}"] if neighbour else []
            cells += [cell]
            cells += [] if neighbour else [f"{stage}SEND_{kind}{part}"]
        rows.append(cells)
    simulated_by_torch(rows)
    with pytest.raises(AssertionError, match="SEND_F1"):
        meet(rows)


def test_updates_stand_where_our_schedule_has_them() -> None:
    """The second of three stages; torch adds messages and moves nothing else."""
    rows = exported(Method(), 3)
    own = [cell for cell in rows[1] if not re.search("SEND|RECV", cell)]
    assert own[:9] == [
        "1F0",
        "1F1",
        "1B0",
        "1REDUCE_GRAD0",
        "1F2",
        "1B1",
        "1REDUCE_GRAD1",
        "1F3",
        "1B2",
    ]


def test_halves_of_a_backward_are_told_apart() -> None:
    """Of two stages the second owes a gradient of its weights; nobody waits for the first."""
    method = Method(schedule="zb-h1", policy="sync", microbatches=3)
    assert computations(chain_schedule(2, method, 1), updates=False) == [
        ["0F0", "0F1", "0B0", "0F2", "0B1", "0B2"],
        ["1F0", "1I0", "1F1", "1I1", "1W0", "1F2", "1I2", "1W1", "1W2"],
    ]


def test_two_stages_on_a_rank_are_refused() -> None:
    with pytest.raises(InvalidInput, match="zb-v has 2 stages on every accelerator"):
        chain_schedule(4, Method(schedule="zb-v", policy="sync", microbatches=4), 1)


def test_microbatches_are_numbered_through() -> None:
    schedule = chain_schedule(1, Method(schedule="gpipe", policy="sync", microbatches=2), 2)
    assert computations(schedule, updates=True) == [
        ["0F0", "0F1", "0B0", "0B1", "0REDUCE_GRAD0", "0F2", "0F3", "0B2", "0B3", "0REDUCE_GRAD1"]
    ]


def test_an_action_without_a_word_is_named() -> None:
    class Sideways(Pass):
        pass

    known = chain_schedule(1, Method(), 1)
    odd = Schedule(known.kind, known.pipeline, 1, 1, {0: (Sideways(0),)})
    with pytest.raises(InvalidInput, match="Sideways"):
        computations(odd, updates=True)
