"""What every command takes: a file with its options, silence, JSON; and how lines are broken."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from rich.console import Group
from rich.table import Table

from drlpp.cli.command_line import ProgramConsole, wrapped
from drlpp.cli.commands import _options_in
from drlpp.cli.main import app, main
from drlpp.io.documents import write_document
from drlpp.specs.cluster import Link, local_cluster
from tests.support.programs.shell import finish

MODEL = "tests.support.models.small:perceptron"
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def test_there_are_at_most_45_options_and_help_fits_on_two_screens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert {*COMMANDS} == {"learn", "train", "plan", "profile", "race", "show", "export"}
    options: set[str] = set()
    for name, command in COMMANDS.items():
        own = {p.name for p in command.params if p.param_type_name == "option"} - {"help"}
        assert own >= {"config", "quiet", "as_json"}
        options |= own
        assert len(finish(main, "drlpp", name, "--help").out.splitlines()) <= 80
    assert len(options) <= 45


def test_options_come_from_a_file_and_the_command_line_before_it(tmp_path: Path) -> None:
    options, graph, other = (tmp_path / name for name in ("run.yaml", "graph.json", "other.json"))
    # As a version before wrote it.
    content = {"what": MODEL, "model-option": {"batch_size": 4}, "output": str(graph)}
    options.write_text(yaml.safe_dump(content))
    show = ("show", "--config", options)
    done = finish(main, "drlpp", *show)
    assert done.code == 0, done.err
    assert "batch_size=4" in json.loads(graph.read_text())["model"]
    done = finish(main, "drlpp", *show, "-o", other, "--model-option", "batch_size=2")
    assert done.code == 0, done.err
    assert "batch_size=2" in json.loads(other.read_text())["model"]


def test_a_file_is_a_tree_or_has_options_of_a_version_before() -> None:
    known = dict.fromkeys(("model", "optimizer", "cluster", "limit", "model-option"))
    tree: dict[str, Any] = {
        "model": {"name": "gnmt8", "batch_size": 4},
        "method": {"policy": "sync", "schedule": "gpipe"},
        "optimizer": {"name": "adamw", "lr": 1e-3, "groups": {"*.bias": {"weight_decay": 0}}},
        "cluster": {"workers": 4, "cluster": "auto"},
    }
    assert _options_in(tree, known) == {
        "model": "gnmt8",
        "model-option": {"batch_size": 4},
        "policy": "sync",
        "method-option": {"schedule": "gpipe"},
        "optimizer": "adamw",
        "optimizer-option": {"lr": 1e-3},
        "parameter-group": ["*.bias: weight_decay=0"],
        "workers": 4,
        "cluster": "auto",
    }
    before = {
        "size": "published",
        "model-option": ["batch_size=4"],
        "objective": "time-to-loss",
        "limit": 60,
        "hosts": "cluster.yaml",
        "lr-schedule": "step",
        "lr-schedule-option": ["step_size=2", "warm_up=3"],
    }
    assert _options_in(before, known | {"lr-schedule": None}) == {
        "model-option": ["batch_size=4", "size=published"],
        "limit": 60,
        "cluster": "cluster.yaml",
        "lr-schedule": "step step_size=2 warm_up=3",
    }


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


def test_quiet_prints_nothing_and_json_nothing_else(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    write_document(cluster, local_cluster(3, Link(bandwidth_bytes_per_second=1e9)))
    costs, plan = tmp_path / "costs.csv", tmp_path / "plan.json"
    costs.write_text("name,forward_ms,backward_ms\nbody,3,6\nhead,3,6\n")
    options = ["--profile", costs, "--cluster", cluster, "--planner", "gpipe"]
    done = finish(main, "drlpp", "plan", *options, "-o", plan, "--quiet")
    assert (done.code, done.out) == (0, "")
    assert plan.exists()
    done = finish(main, "drlpp", "show", cluster, "--json")
    assert json.loads(done.out)["kind"] == "cluster"
    assert "3 accelerators on 1 host" in done.err


def test_no_line_ends_between_a_number_and_its_unit() -> None:
    text = "a minibatch takes 41.27 ms, and the link 1.25 GB/s, on 4 workers of this machine"
    for width in range(20, len(text) + 1):
        lines = wrapped(text, width).split("\n")
        assert " ".join(lines) == text
        assert all(len(line) <= width for line in lines)
        assert not any(line.startswith(("ms", "GB/s")) for line in lines)


def test_the_console_breaks_lines_of_groups_and_cells_but_not_those_that_wrap_softly() -> None:
    console = ProgramConsole(width=30, markup=False, record=True, file=io.StringIO())
    text = "comparing took 105 s, and then 12345 ms"
    console.print(Group(text))
    assert console.export_text().rstrip("\n").split("\n") == [
        "comparing took 105 s, and then",
        "12345 ms",
    ]
    console.print(text, soft_wrap=True)
    assert console.export_text() == text + "\n"
    table = Table("what", width=20)
    table.add_row("it takes some 1 ms")
    console.print(table)
    assert "1 ms" in console.export_text()
