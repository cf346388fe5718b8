"""torch's own simulator of communication plays what we export, and no rank waits for ever."""

import re
from collections import deque
from itertools import product

import pytest
from torch.distributed.pipelining import schedules

from drlpp.exporting.chain import schedule_csv
from drlpp.schedule.method import Method
from drlpp.torch_versions import pipelines_take_functions

if not pipelines_take_functions():
    pytest.skip("this torch has no custom functions", allow_module_level=True)

FLUSHED = [
    Method(schedule="gpipe", policy="sync", microbatches=4),
    Method(schedule="1f1b-flush", policy="sync", microbatches=4),
    Method(schedule="1f1b-flush", policy="sync", microbatches=2, accumulate=3),
]
STAGES = (1, 2, 3, 4)

Rows = list[list[str]]


def exported(method: Method, stages: int) -> Rows:
    """With sends and receives where torch's runtime places them when it reads the rows."""
    rows = [line.split(",") for line in schedule_csv(stages, method).splitlines()]
    actions = {
        rank: [action for cell in row if (action := schedules._Action.from_str(cell))]
        for rank, row in enumerate(rows)
    }
    lowered = schedules._add_send_recv(actions, lambda stage: stage, stages)
    return [[str(action) for action in lowered[rank]] for rank in sorted(lowered)]


def simulated_by_torch(rows: Rows) -> None:
    """Raises where the schedule does not progress."""
    order = {k: [schedules._Action.from_str(cell) for cell in row] for k, row in enumerate(rows)}
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


@pytest.mark.parametrize(("method", "stages"), list(product(FLUSHED, STAGES)))
def test_nobody_waits_for_ever(method: Method, stages: int) -> None:
    rows = exported(method, stages)
    assert len(rows) == stages
    simulated_by_torch(rows)
    meet(rows)
    order = {k: [schedules._Action.from_str(cell) for cell in row] for k, row in enumerate(rows)}
    parts = method.microbatches * method.accumulate
    schedules._validate_schedule(order, stages, stages, parts)
