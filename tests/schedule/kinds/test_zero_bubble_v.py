"""ZB-V: the order of torch's implementation, no bubble in steady state, and who may run it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleZBVZeroBubble
from torch.testing._internal.distributed.fake_pg import FakeStore

from drlpp.errors import InvalidInput
from drlpp.schedule.actions import (
    Action,
    Backward,
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


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("microbatches", [1, 4, 7, 12])
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
                letters = "IW" if isinstance(action, Backward) else LETTERS[type(action)]
                found[-1] += [f"{stages[action.chunk]}{x}{action.microbatch}" for x in letters]
    assert found == theirs(workers, microbatches)


def units(worker: int, action: Action) -> float:
    return action.units


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_no_worker_waits_between_two_updates(workers: int) -> None:
    """But for filling and draining once, by one pass for each worker but the first."""
    microbatches = 2 * workers
    for minibatches in (1, 5):
        schedule = build_schedule(folded(workers), minibatches, "zb-v", microbatches)
        end = max(timed.end for timed in play(schedule, units))
        assert end == minibatches * microbatches * 6 + workers - 1


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_every_worker_holds_the_activations_of_as_many_microbatches(workers: int) -> None:
    """2 P of a stage: as many halves of a worker's share as the first worker of 1F1B holds."""
    schedule = build_schedule(folded(workers), 2, "zb-v", 3 * workers)
    for actions in schedule.actions.values():
        held, peak = 0, 0
        for action in actions:
            held += isinstance(action, Forward)
            held -= isinstance(action, Backward | BackwardWeight)
            peak = max(peak, held)
        assert peak == 2 * workers


def test_a_kind_and_a_placement_have_to_fit() -> None:
    straight, there_and_back = Pipeline.straight(1, 1, 1, 1), folded(2)
    with pytest.raises(InvalidInput, match="zb-v needs a placement whose accelerators hold two"):
        build_schedule(straight, 1, "zb-v")
    with pytest.raises(InvalidInput, match="a 1f1b-flush schedule is for one stage on each"):
        build_schedule(there_and_back, 1, "1f1b-flush")
    with pytest.raises(InvalidInput, match="a 1f1b schedule is for one stage on each"):
        stage_delays(there_and_back, Method())
