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
    idle_passes_of_zb_v,
)
from benchmarks.models import BLOCKS
from benchmarks.torch_training import BaselineRun
from drlpp.schedule.actions import Action, Update
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


def test_ours_are_held_against_torchs_turn_by_turn() -> None:
    def taken(who: Contender) -> list[Sample]:
        seconds = (2.0, 3.0, 8.0) if who.ours else (1.0, 2.0, 8.0)
        return [Sample(each, each / 2) for each in seconds]

    table = table_of({(2, 4, who): taken(who) for who in CONTENDERS})
    ratios = dict(zip(table["schedule"], table["× torch's"], strict=True))
    assert ratios == {str(who): "1.500" if who in OF_TORCH else "–" for who in CONTENDERS}


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
