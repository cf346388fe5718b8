"""Programs whose output is a pipe say how far they are while they run, line by line."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from benchmarks import PROFILES
from drlpp.capturing.capture import capture
from drlpp.io.documents import write_document
from drlpp.io.progress_lines import said_while_it_lasts
from drlpp.models.model_reference import ModelReference
from tests.support.programs.shell import Shell
from tests.support.training.pipelines import in_a_row
from tests.support.training.placement_files import file_of

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
    model = [
        "tests.support.models.small:perceptron",
        "--workers",
        "2",
        "--out",
        str(tmp_path / "run"),
    ]
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
def test_training_says_where_it_is(tmp_path: Path) -> None:
    captured = capture(ModelReference.named("tests.support.models.small:perceptron", layers=2))
    placement = tmp_path / "placement.json"
    write_document(placement, file_of(captured, in_a_row(captured.graph, 0, 1)))
    data = [
        "--data",
        "tests.support.models.small:separable",
        "--epochs",
        "5000",
        "--model",
        "tests.support.models.small:perceptron",
    ]
    with started(*DRLPP, "train", str(placement), *data) as process:
        first_line(process, "^training tests.support.models.small:perceptron")
        for epoch in (1, 2, 3):
            line = first_line(process, "^epoch ")
            assert re.match(rf"epoch +{epoch}  loss .* minibatches/s  left {CLOCK}", line)


def test_planning_says_on_standard_error_what_lasts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = Shell(monkeypatch, capsys)
    plan = ("plan", "--profile", PROFILES / "vgg16.json", "--workers", 4, "--bandwidth", 1e9)
    often = partial(said_while_it_lasts, seconds_between=1e-4)
    monkeypatch.setattr("drlpp.cli.command_line.said_while_it_lasts", often)
    _, out, err = shell(*plan, "--json")
    assert "planning with search: 0:00 so far\n" in err
    assert json.loads(out)["method"] == "search"
