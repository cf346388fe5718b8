"""The study of bubbles at its smallest: everybody runs, and trains to plain PyTorch's weights."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch
from _pytest.mark import ParameterSet
from typer.testing import CliRunner

from benchmarks.bubbles.__main__ import app, table_of
from benchmarks.bubbles.measuring import (
    CONTENDERS,
    OF_TORCH,
    Bench,
    Contender,
    Sample,
    bench,
)
from benchmarks.bubbles.measuring import folded as in_halves
from benchmarks.bubbles.pass_times import PassTimes, idle_passes_of_zb_v
from benchmarks.models import BLOCKS, placement_of, reference
from benchmarks.torch_training import BaselineRun
from drlpp.capturing.capture import capture
from drlpp.capturing.graph import OpGraph
from drlpp.placement.candidate import Candidate
from drlpp.schedule.actions import (
    Action,
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Update,
)
from drlpp.schedule.method import Method
from drlpp.schedule.schedule import build_schedule
from drlpp.timeline.timeline import play
from drlpp.torch_versions import older_than
from tests.support.schedule_texts import folded

TINY = {"batch_size": 8, "hidden": 8, "tokens": 2}
UPDATES = 3


@pytest.fixture(scope="module")
def workers() -> Iterator[Bench]:
    with bench("feed_forwards", TINY, stages=2, speed=0.5) as workers:
        yield workers


def contenders(*who: Contender) -> list[ParameterSet]:
    """Contenders as arguments; torch's pipelining wants other arguments in older versions."""
    old = pytest.mark.skipif(older_than("2.13"), reason="the study is with torch 2.13")
    return [pytest.param(c, id=str(c), marks=old if c.theirs else ()) for c in who]


@pytest.mark.slow
@pytest.mark.parametrize("who", contenders(*CONTENDERS))
def test_a_sample_has_a_bubble_and_ours_a_formula(workers: Bench, who: Contender) -> None:
    sample = workers.sample(who, 4, UPDATES)
    assert sample.seconds > 0
    assert sample.busiest_seconds > 0
    assert (sample.expected_bubble_seconds is None) == (who.ours is None)
    assert (sample.simulated_seconds is None) == (who.ours is None)
    if sample.simulated_seconds is not None:
        # No worker is busier than an update is long, and messages take no time here.
        assert 0.98 * sample.busiest_seconds < sample.simulated_seconds


@pytest.mark.slow
@pytest.mark.parametrize("who", contenders(*(c for c in CONTENDERS if c.theirs)))
def test_torchs_schedules_train_as_plain_pytorch(workers: Bench, who: Contender) -> None:
    """Else their times would say nothing; ours are held against it in tests of the runtime."""
    stages = 2 * who.held
    assert who.theirs is not None
    run = BaselineRun(
        name=who.theirs,
        model=workers.session.captured.reference,
        blocks=(BLOCKS // stages,) * stages,
        microbatches=4,
        optimizer=workers.optimizer,
        updates=UPDATES,
        with_weights=True,
    )
    found = {
        n: torch.from_numpy(w) for r in workers.processes.run(run) for n, w in r.weights.items()
    }
    task = workers.session.captured.reference.build()
    assert task.loss is not None
    optimizer = workers.optimizer.find()(task.module.parameters(), **workers.optimizer.complete)
    for _ in range(UPDATES):
        optimizer.zero_grad()
        task.loss(task.module(*task.inputs), task.targets).backward()
        optimizer.step()
    wanted = dict(task.module.named_parameters())
    assert found.keys() == wanted.keys()
    for name, weight in wanted.items():
        torch.testing.assert_close(found[name], weight.detach(), rtol=1e-4, atol=1e-6, msg=name)


def units(worker: int, action: Action) -> float:
    return action.units


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_zb_v_waits_for_the_microbatches_that_do_not_fill_it(workers: int) -> None:
    for microbatches in range(1, 2 * workers + 2):
        schedule = build_schedule(folded(workers), 6, "zb-v", microbatches)
        complete = dict.fromkeys(range(1, 7), 0.0)
        for timed in play(schedule, units):
            if isinstance(timed.action, Update):
                through = timed.action.through
                complete[through] = max(complete[through], timed.end)
        bubble = (complete[6] - complete[3]) / 3 - 6 * microbatches
        assert bubble == idle_passes_of_zb_v(workers, microbatches)


@pytest.fixture(scope="module")
def graph() -> OpGraph:
    return capture(reference("feed_forwards", TINY)).graph


@pytest.mark.parametrize("who", [c for c in CONTENDERS if c.ours], ids=str)
@pytest.mark.parametrize(("workers", "microbatches"), [(2, 4), (4, 4), (4, 8)])
def test_a_simulated_bubble_of_equal_passes_is_the_formulas(
    graph: OpGraph, who: Contender, workers: int, microbatches: int
) -> None:
    assert who.ours is not None
    method = Method(schedule=who.ours, policy="sync", microbatches=microbatches)
    stages, splits = workers * who.held, method.schedule_kind.splits_backward
    placement = placement_of(graph, [BLOCKS // stages] * stages, [1] * stages)
    placement = in_halves(placement) if who.held > 1 else placement
    passes = PassTimes()
    for stage in range(stages):
        passes.passes[stage, Forward] += [2.0, 4.0]
        if splits and stage:
            passes.passes[stage, BackwardInput] += [3.0, 3.0]
            passes.passes[stage, BackwardWeight] += [3.0, 3.0]
        else:
            passes.passes[stage, Backward] += [6.0, 6.0]
    for worker in range(workers):
        passes.updates[worker] += [1.0, 1.0]
    computes = 9.0 * microbatches * who.held + 1.0
    found = passes.simulated_seconds(graph, Candidate(placement, method)) - computes
    of_formula = (
        passes.bubble_of_zb_v(workers, microbatches) if who.held > 1 else passes.bubble(workers)
    )
    assert found == pytest.approx(of_formula)


def test_ours_are_simulated_and_held_against_torchs_turn_by_turn() -> None:
    def taken(who: Contender) -> list[Sample]:
        seconds = (2.0, 3.0, 8.0) if who.ours else (1.0, 2.0, 8.0)
        simulated = 0.75 if who.ours else None
        return [
            Sample(each, each / 2, simulated_seconds=simulated and simulated * each)
            for each in seconds
        ]

    table = table_of({(2, 4, who): taken(who) for who in CONTENDERS})
    ratios = dict(zip(table["schedule"], table["× torch's"], strict=True))
    assert ratios == {str(who): "1.500" if who in OF_TORCH else "–" for who in CONTENDERS}
    # All compute half of the time.
    waiting = dict(zip(table["schedule"], table["waiting × torch's"], strict=True))
    assert waiting == {str(who): "1.000" if who in OF_TORCH else "–" for who in CONTENDERS}
    bubbles = dict(zip(table["schedule"], table["simulated"], strict=True))
    assert bubbles == {str(who): "50.0%" if who.ours else "–" for who in CONTENDERS}


@pytest.mark.slow
def test_the_command_prints_every_sample() -> None:
    words = ["--short", "--json", "--stages", "2", "--microbatches", "2", "--speed", "0.5"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [row["schedule"] for row in rows] == [str(who) for who in CONTENDERS]
    assert all(len(row["samples"]) == 1 for row in rows)


@pytest.mark.parametrize(
    ("option", "value"), [("--stages", "3"), ("--stages", "x"), ("--microbatches", "0,2")]
)
def test_numbers_that_do_not_divide_are_refused(option: str, value: str) -> None:
    result = CliRunner().invoke(app, ["--short", option, value])
    assert result.exit_code != 0
    assert "expected" in str(result.exception)
