"""The command line: what it prints, and that bad input is one line and exit code 2."""

import json
import platform
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path

import pytest
import torch
import typer

from drlpp.capturing.capture import capture
from drlpp.cli.command_line import resume_hint_on_interrupt, run_program
from drlpp.cli.main import main
from drlpp.cli.showing import machine
from drlpp.io.documents import write_document
from drlpp.models.model_reference import ModelReference
from tests.support.programs.shell import finish
from tests.support.training.pipelines import in_a_row
from tests.support.training.placement_files import file_of

SAMPLES = "tests.endurance.faults.strikes:samples"
SMALL = "tests.support.models.small:perceptron"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["drlpp", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


def test_versions_are_shown_for_reports(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--version") == 0
    shown = capsys.readouterr().out
    for version in (metadata.version("drlpp"), torch.__version__, platform.python_version()):
        assert version in shown


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "graph.json"
    assert run(monkeypatch, "show", "tests.support.models.small:perceptron", "-o", str(path)) == 0
    return path


@pytest.mark.parametrize(
    ("name", "content", "shown"),
    [
        ("run.yaml", "budget: 8\nspeeds: 1,0.5\n", ["budget", "1,0.5", "--config"]),
        ("costs.csv", "name,forward_ms,backward_ms\nhead,3,6\n", ["head", "3.00 ms"]),
    ],
)
def test_show_reads_what_else_lies_in_a_run_folder(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: str,
    shown: list[str],
) -> None:
    (tmp_path / name).write_text(content)
    assert run(monkeypatch, "show", str(tmp_path / name)) == 0
    text = capsys.readouterr().out
    assert all(part in text for part in shown)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "lenet", "-o", "x.json"], "not in the zoo; it has alexnet"),
        (["show", "no.such:thing", "-o", "x.json"], "importing 'no.such' raised"),
        (
            ["show", "tests.support.models.small:perceptron", "-o", "x", "--model-option", "3"],
            "KEY=VALUE",
        ),
        (["show", "missing.json"], "missing.json: no such file"),
        (["show", __file__], "as Python imports it: test_cli:FUNCTION"),
        (["train", "missing.json"], "missing.json: no such file"),
        (["train", "missing.json", "--timeout", "0"], "a time limit of 0.0 s was given"),
        (["show", "x" * 40_000], "x" * 60),
        (
            ["profile", "alexnet", "--model-option", "size=big", "-o", "x.json"],
            "small or published",
        ),
    ],
)
def test_bad_input_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    assert run(monkeypatch, *arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith("drlpp: error: ")
    assert message in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [
        ["train", "PLACEMENT", "--data", SAMPLES, "--model", SMALL],
        [
            "profile",
            "tests.support.models.small:perceptron",
            "--workers",
            "1",
            "-o",
            "profile.json",
        ],
    ],
)
def test_a_time_limit_holds_from_the_beginning(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    command: list[str],
) -> None:
    captured = capture(ModelReference.named("tests.support.models.small:perceptron"))
    path = tmp_path / "placement.json"
    write_document(path, file_of(captured, in_a_row(captured.graph, 0, 1)))
    arguments = [str(path) if word == "PLACEMENT" else word for word in command]
    assert run(monkeypatch, *arguments, "--timeout", "1e-6") == 1
    told = capsys.readouterr().err
    assert "give a longer time limit (--timeout, timeout_seconds)" in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "truncated or not well-formed"),
        (lambda text: text.replace('"version": 1', '"version": 9'), "written by a newer drlpp"),
        (lambda text: text.replace('"kind": "graph"', '"kind": "poem"'), "expected one of"),
    ],
)
def test_damaged_files_are_told(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    graph: Path,
    damage: object,
    message: str,
) -> None:
    graph.write_text(damage(graph.read_text()))  # type: ignore[operator]
    assert run(monkeypatch, "show", str(graph)) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("through_typer", [False, True])
@pytest.mark.parametrize("how", [None, "go on with --resume"])
def test_ctrl_c_says_how_to_go_on_where_one_can(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    through_typer: bool,
    how: str | None,
) -> None:
    def interrupted() -> None:
        with resume_hint_on_interrupt(how) if how else nullcontext():
            raise KeyboardInterrupt

    program: Callable[[], object] = interrupted
    if through_typer:
        program = typer.Typer()
        program.command()(interrupted)
    monkeypatch.setattr(sys, "argv", ["drlpp"])
    with pytest.raises(SystemExit) as stop:
        run_program(program, "drlpp")
    assert stop.value.code == 130
    told = capsys.readouterr().err
    assert told.splitlines() == [*([how] if how else []), "drlpp: interrupted"]


def test_help_and_completion_wait_for_no_heavy_import() -> None:
    heavy = {"torch", "numpy", "pandas", "scipy", "matplotlib", "ray"}
    code = f"import drlpp.cli.main, sys; print(*sorted({heavy!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


def test_show_without_arguments_examines_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    done = finish(main, "drlpp", "show", "--json")
    assert done.code == 0
    found = {finding["name"]: finding for finding in json.loads(done.out)["findings"]}
    assert torch.__version__ in found["versions"]["found"]
    assert "two answer" in found["workers"]["found"]
    monkeypatch.setattr(machine, "OLDEST_TORCH", "99.0")
    monkeypatch.setattr(machine, "_LEAST_MEMORY_BYTES", 1e18)
    monkeypatch.setattr(machine, "all_checks", lambda: (machine.versions, machine.memory))
    done = finish(main, "drlpp", "show", "--json")
    assert done.code == 1
    assert json.loads(done.out)["problems"] == ["versions", "memory"]
