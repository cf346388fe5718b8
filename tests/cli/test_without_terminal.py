"""Programs whose output is a pipe say how far they are while they run, line by line."""

import io
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from drlpp.cli import command_line
from tests.support.programs.shell import done

MODEL = "tests.support.models.small:perceptron"
ROOT = Path(__file__).parents[2]
DRLPP = (sys.executable, "-c", "from drlpp.cli.main import main; main()")
CLOCK = r"([0-9]+:[0-5][0-9]|[0-9]+):[0-5][0-9]"


@contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A program that is killed at the end of the block; its workers end with it."""
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def first_line(process: subprocess.Popen[str], pattern: str) -> str:
    """The first line that matches, which is read while the program runs."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if re.search(pattern, line):
            assert process.poll() is None, "only at the end"
            return line
    raise AssertionError("".join(seen))


@pytest.mark.system
def test_learning_says_what_it_measures(tmp_path: Path) -> None:
    model = [MODEL, "--workers", "2", "--out", str(tmp_path / "run")]
    short = ["--budget", "500", "--minibatches", "2", "--repetitions", "1"]
    with started(*DRLPP, "learn", *model, *short) as process:
        first_line(process, "^profiling operators and links$")
        line = first_line(process, "^measured ")
        place = r"[0-9-]+"
        assert re.fullmatch(
            rf"measured [0-9]+ of 500 placements, last {place}: [0-9.]+ .s, "
            rf"best [0-9.]+ .s \({place}\), left {CLOCK}\n",
            line,
        )
        count = int(line.split()[1])
        assert int(first_line(process, "^measured ").split()[1]) > count


@pytest.mark.system
def test_training_says_where_it_is(files: dict[str, Path]) -> None:
    data = ("--data", "tests.support.models.small:separable", "--model", MODEL, "--epochs", "5000")
    with started(*DRLPP, "train", str(files["PLACEMENT"]), *data) as process:
        first_line(process, f"^training {MODEL}")
        for epoch in (1, 2, 3):
            line = first_line(process, "^epoch ")
            assert re.match(rf"epoch +{epoch}  loss .* minibatches/s  left {CLOCK}", line)


def test_planning_says_on_standard_error_what_lasts(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = ("plan", "--profile", files["CHAIN"], "--workers", 2, "--bandwidth", 10)
    assert done(*plan).err == ""
    monkeypatch.setattr(command_line, "SECONDS_UNSAID", 0)
    planned = done(*plan)
    assert "planning with search\n" in planned.err
    assert "planning with" not in planned.out


def test_on_a_terminal_what_looks_like_markup_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True)
    monkeypatch.setattr(command_line, "console", terminal)
    with command_line.shown("planning with [/x]") as tell:
        tell("[/y]")
    assert isinstance(terminal.file, io.StringIO)
    assert "[/y]" in terminal.file.getvalue()
