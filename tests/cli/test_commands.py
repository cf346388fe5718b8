"""What every command takes and does: a file with options, silence, JSON, exit codes, Ctrl-C."""

from __future__ import annotations

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
import yaml

from drlpp.capturing.capture import capture
from drlpp.cli import show_command
from drlpp.cli.command_line import resumable, run_program
from drlpp.cli.entry import begin
from drlpp.cli.main import app
from drlpp.io.documents import write_document
from drlpp.models.model_reference import ModelReference
from tests.support.programs.shell import as_json, done, drlpp
from tests.support.training.pipelines import in_a_row
from tests.support.training.placement_files import file_of

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
        assert own >= {"config", "as_json"}
        options |= own
        assert len(done(name, "--help").out.splitlines()) <= 80
    assert len(options) <= 45


def test_help_and_completion_wait_for_no_heavy_import() -> None:
    heavy = {"torch", "numpy", "pandas", "matplotlib", "ray"}
    code = f"import drlpp.cli.main, sys; print(*sorted({heavy!r} & sys.modules.keys()))"
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ended.stdout.split() == []


def test_versions_are_shown_for_reports() -> None:
    shown = done("--version").out
    for version in (metadata.version("drlpp"), torch.__version__, platform.python_version()):
        assert version in shown


def test_options_come_from_a_file_and_the_command_line_before_it(tmp_path: Path) -> None:
    options = tmp_path / "run.yaml"
    options.write_text(yaml.safe_dump({"what": MODEL, "model-option": {"batch_size": 4}}))
    assert "batch_size=4" in as_json("show", "--config", options)["model"]
    other = as_json("show", "--config", options, "--model-option", "batch_size=2")
    assert "batch_size=2" in other["model"]


@pytest.mark.parametrize("through_typer", [False, True])
@pytest.mark.parametrize("resumes", [True, False])
def test_ctrl_c_says_how_to_go_on_where_one_can(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    through_typer: bool,
    resumes: bool,
) -> None:
    def interrupted() -> None:
        with resumable("run") if resumes else nullcontext():
            raise KeyboardInterrupt

    program: Callable[[], object] = interrupted
    if through_typer:
        program = typer.Typer()
        program.command()(interrupted)
    monkeypatch.setattr(sys, "argv", ["drlpp"])
    with pytest.raises(SystemExit) as stop:
        run_program(program, "drlpp")
    assert stop.value.code == 130
    how = ["the same command with --resume continues the run"] if resumes else []
    assert capsys.readouterr().err.splitlines() == [*how, "drlpp: interrupted"]


def test_an_interrupted_import_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "interrupted_program.py").write_text("raise KeyboardInterrupt\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        begin("interrupted_program", "drlpp")
    assert ended.value.code == 130
    assert capsys.readouterr().err == "drlpp: interrupted\n"


@pytest.mark.parametrize("command", [pytest.param("train", marks=pytest.mark.system), "profile"])
def test_a_time_limit_holds_from_the_beginning(tmp_path: Path, command: str) -> None:
    captured = capture(ModelReference.named(MODEL))
    path = write_document(
        tmp_path / "placement.json", file_of(captured, in_a_row(captured.graph, 0, 1))
    )
    data = "tests.endurance.faults.strikes:samples"
    given = {
        "train": (path, "--data", data, "--model", MODEL),
        "profile": (MODEL, "--workers", 1, "-o", tmp_path / "profile.json"),
    }
    ended = drlpp(command, *given[command], "--timeout", "1e-6")
    assert ended.code == 1
    assert "give a longer time limit (--timeout, timeout_seconds)" in ended.err
    assert ended.err.splitlines()[-1].startswith("drlpp: error: ")


def test_show_without_arguments_examines_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show_command, "_LEAST_MEMORY_BYTES", 0)
    found = as_json("show")
    assert torch.__version__ in found["versions"]
    assert "two answer" in found["workers"]
    monkeypatch.setattr(show_command.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(show_command, "_LEAST_MEMORY_BYTES", 1e18)
    monkeypatch.setattr(
        show_command, "CHECKS", {"versions": show_command.versions, "memory": show_command.memory}
    )
    ended = drlpp("show")
    assert ended.code == 1
    assert ended.err.endswith("drlpp cannot train on this machine: memory, versions\n")
