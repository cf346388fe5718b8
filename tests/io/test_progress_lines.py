"""Lines in place of a progress bar."""

import io

import pytest
from rich.console import Console

from drlpp.io.progress_lines import ProgressLines, TimeLeft, shown


def test_a_line_follows_another_after_some_seconds_and_the_last_is_not_lost() -> None:
    written: list[str] = []
    now = 100.0
    lines = ProgressLines(written.append, seconds_between=3, clock=lambda: now)
    for second in range(8):
        now = 100.0 + second
        lines(f"{second} of 8")
    assert written == ["0 of 8", "3 of 8", "6 of 8"]
    lines.close()
    assert written == ["0 of 8", "3 of 8", "6 of 8", "7 of 8"]
    lines.close()
    assert len(written) == 4


def test_the_time_left_is_of_what_was_seen() -> None:
    now = 0.0
    left, resumed = TimeLeft(done=0, clock=lambda: now), TimeLeft(clock=lambda: now)
    assert left.text(0, 10) == "–"
    now = 30.0
    assert left.text(2, 10) == "2:00"
    assert resumed.text(6, 10) == "–", "how long these took nobody has seen"
    now = 40.0
    assert resumed.text(7, 10) == "0:30"
    assert left.text(10, 10) == "0:00"


@pytest.mark.parametrize("terminal", [True, False])
def test_what_looks_like_markup_is_text(terminal: bool) -> None:
    file = io.StringIO()
    with shown(Console(file=file, force_terminal=terminal), "planning with [/x]") as tell:
        tell("[/y]")
    assert "[/y]" in file.getvalue()
