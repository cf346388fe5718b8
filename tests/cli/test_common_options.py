"""What every command takes: a file with its options, silence, JSON; and how lines are broken."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import yaml
from rich.console import Group

from drlpp.cli.main import app, main
from drlpp.cli.program_console import ProgramConsole, wrapped
from drlpp.io.documents import write_document
from drlpp.specs.cluster import Link, local_cluster
from tests.support.programs.shell import finish

MODEL = "tests.support.models.small:perceptron"


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    write_document(path, local_cluster(3, Link(bandwidth_bytes_per_second=1e9)))
    return path


def test_options_come_from_a_file_and_the_command_line_before_it(tmp_path: Path) -> None:
    options = tmp_path / "run.yaml"
    graph = tmp_path / "graph.json"
    content = {"what": MODEL, "model-option": {"batch_size": 4}, "output": str(graph)}
    options.write_text(yaml.safe_dump(content))
    done = finish(main, "drlpp", "show", "--config", options)
    assert done.code == 0, done.err
    assert "batch_size=4" in json.loads(graph.read_text())["model"]
    other = tmp_path / "other.json"
    done = finish(
        main, "drlpp", "show", "--config", options, "-o", other, "--model-option", "batch_size=2"
    )
    assert done.code == 0, done.err
    assert "batch_size=2" in json.loads(other.read_text())["model"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("modle: alexnet\n", "'modle' is no option of this command; there are cluster, json"),
        ("- alexnet\n", "run.yaml"),
        ("model: alexnet", "does not end with a newline"),
    ],
)
def test_a_file_with_options_that_do_not_fit_is_refused(
    tmp_path: Path, text: str, problem: str
) -> None:
    options = tmp_path / "run.yaml"
    options.write_text(text)
    done = finish(main, "drlpp", "show", "--config", options)
    assert done.code == 2
    assert problem in done.err
    assert len(done.err.splitlines()) == 1


def test_every_command_takes_a_file_with_options() -> None:
    assert len(app.registered_commands) >= 7
    for command in app.registered_commands:
        assert command.callback is not None
        assert "config" in command.callback.__annotations__, command.name


def test_quiet_prints_nothing_and_json_nothing_else(tmp_path: Path, cluster: Path) -> None:
    costs, plan = tmp_path / "costs.csv", tmp_path / "plan.json"
    costs.write_text("name,forward_ms,backward_ms\nbody,3,6\nhead,3,6\n")
    options = ["--profile", costs, "--cluster", cluster, "--method", "gpipe"]
    done = finish(main, "drlpp", "plan", *options, "-o", plan, "--quiet")
    assert (done.code, done.out) == (0, "")
    assert plan.exists()
    done = finish(main, "drlpp", "show", cluster, "--json")
    assert json.loads(done.out)["hosts"][0]["accelerators"] == 3
    done = finish(main, "drlpp", "show", cluster, "--json")
    assert json.loads(done.out)["kind"] == "cluster"
    assert not done.err


def test_no_line_ends_between_a_number_and_its_unit() -> None:
    text = "a minibatch takes 41.27 ms, and the link 1.25 GB/s, on 4 workers of this machine"
    for width in range(20, len(text) + 1):
        lines = wrapped(text, width).split("\n")
        assert " ".join(lines) == text
        assert all(len(line) <= width for line in lines)
        assert not any(line.startswith(("ms", "GB/s")) for line in lines)


def test_the_console_breaks_lines_of_groups_and_leaves_those_that_wrap_softly() -> None:
    console = ProgramConsole(width=30, markup=False, record=True, file=io.StringIO())
    text = "comparing took 105 s, and then 12345 ms"
    console.print(Group(text))
    assert console.export_text().rstrip("\n").split("\n") == [
        "comparing took 105 s, and then",
        "12345 ms",
    ]
    console.print(text, soft_wrap=True)
    assert console.export_text() == text + "\n"
