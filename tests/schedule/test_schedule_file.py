"""Schedules as text files."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from hypothesis import given

import drlpp.schedule.schedule_file
from drlpp.errors import InvalidFile
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import Schedule, build_schedule
from drlpp.schedule.schedule_file import (
    parse_schedule,
    read_schedule,
    schedule_text,
    write_schedule,
)
from tests.support.strategies.schedules import any_schedule


@given(any_schedule())
def test_what_is_written_is_read_again(schedule: Schedule) -> None:
    assert parse_schedule(schedule_text(schedule)) == schedule


EXAMPLE = build_schedule(Pipeline.straight(1, 1), 2)


def test_the_example_in_the_module_is_what_is_written(tmp_path: Path) -> None:
    path = write_schedule(tmp_path / "schedule.txt", EXAMPLE)
    lines = inspect.getdoc(drlpp.schedule.schedule_file).split("::\n\n", 1)[1].split("\n\n")[0]
    assert path.read_text() == inspect.cleandoc(lines) + "\n"
    assert read_schedule(path) == EXAMPLE


def test_empty_lines_and_comments_are_skipped() -> None:
    text = "# by hand\n\n" + schedule_text(EXAMPLE).replace(".0", "")
    assert parse_schedule(text) == EXAMPLE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("drlpp schedule: 1", "drlpp schedule: 2"), "field 'drlpp schedule': expected version 1"),
        (("drlpp schedule: 1\n", ""), "field 'drlpp schedule': is missing"),
        (("kind: 1f1b", "kind: zb"), "field 'kind': schedule kind 'zb' is unknown; there are 1f1b"),
        (("minibatches: 2", "minibatches: two"), "field 'minibatches': expected numbers"),
        (("minibatches: 2", "minibatches: 0"), "field 'minibatches': expected one number"),
        (("minibatches: 2", "minibatches: 1"), "field 'worker 0': F1.0: there is no such part"),
        (("stage 1: 1", "stage 1: 0"), "a worker is in two stages"),
        (("0<>1", "0<>2"), "field 'edges': expected edges such as 0<>1 or 0>1, found '0<>2'"),
        (("worker 1:", "worker 7:"), "field 'worker 1': is missing"),
        (("worker 0:", "colour: red\nworker 0:"), "field 'colour': is unknown here"),
        (("worker 0:", "kind: gpipe\nworker 0:"), "field 'kind': is there twice"),
        (("B1.0 U2", "X1.0 U2"), "field 'worker 0': 'X1.0' is no action"),
        (("sF0.0:0>1@1", "sF0.0:0>1@4"), "sF0.0:0>1@4: there is no such worker"),
        (("sF0.0:0>1@1", "sF9.0:0>1@1"), "sF9.0:0>1@1: there is no such part"),
        (("sF0.0:0>1@1 ", ""), "cannot proceed"),
    ],
)
def test_what_is_wrong_is_named(change: tuple[str, str], message: str) -> None:
    assert change[0] in schedule_text(EXAMPLE)
    text = schedule_text(EXAMPLE).replace(*change, 1)
    with pytest.raises(InvalidFile) as refused:
        parse_schedule(text, "mine.txt")
    assert str(refused.value).startswith("mine.txt: ")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
