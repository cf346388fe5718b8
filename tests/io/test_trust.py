"""What a file names is imported only if the user trusts it, and nothing before that is settled."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drlpp.capturing.capture import capture
from drlpp.errors import InvalidInput
from drlpp.io.run_folder import open_run_folder
from drlpp.io.trust import trusted_packages
from drlpp.io.trust_memory import remember_trust, remembered_trust
from drlpp.models.model_reference import ModelReference
from drlpp.placement.placement import Placement
from drlpp.placement.placement_file import read_placement
from drlpp.runtime import PipelineTrainer
from drlpp.specs.learning_rate import LearningRateSchedule
from drlpp.specs.optimizer_spec import OptimizerSpec, ParameterGroup
from tests.support.programs.shell import Shell
from tests.support.training.placement_files import file_of

_TRAP = """
from pathlib import Path
import torch

Path("trapped").write_text("imported")
from tests.support.models.small import perceptron


class Lion(torch.optim.SGD):
    pass


def run(command="none", **options):
    Path("trapped").write_text(command)
"""
_DATA = ["--data", "tests.support.models.small:separable", "--epochs", "1"]


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    """A placement file that names a model of a user's own."""
    captured = capture(ModelReference.named("tests.support.models.small:perceptron", layers=2))
    placement = Placement.from_assignment([0, 0, 0, 1, 1], (0, 1))
    document = file_of(captured, placement, optimizer=OptimizerSpec())
    found: dict[str, Any] = document.model_dump(mode="json", exclude_none=True)
    return {"kind": "placement", "version": 1, **found}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty current folder with two packages, of which nobody knows yet, and an empty state."""
    for name in ("first_trap", "second_trap"):
        (tmp_path / f"{name}.py").write_text(_TRAP)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


@pytest.fixture
def write(content: dict[str, Any], tmp_path: Path) -> Callable[..., Path]:
    """Writes a placement with another model or optimizer; gives its path."""

    def write(model: str | None = None, optimizer: str | None = None, to: str = "p.json") -> Path:
        changed = json.loads(json.dumps(content))
        if model is not None:
            changed["model"]["name"] = model
        if optimizer is not None:
            changed["optimizer"] = {"name": optimizer, "options": {"lr": 0.1}}
        path = tmp_path / to
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(changed))
        return path

    return write


def nothing_ran() -> bool:
    return not Path("trapped").exists() and not {"first_trap", "second_trap"} & sys.modules.keys()


@pytest.mark.parametrize("command", [["train"], ["timeline"], ["timeline", "--from", "run"]])
@pytest.mark.parametrize(
    ("model", "optimizer", "packages"),
    [
        ("first_trap:run", None, ["first_trap"]),
        (None, "second_trap:Lion", ["tests", "second_trap"]),
        ("first_trap:perceptron", "second_trap:Lion", ["first_trap", "second_trap"]),
        ("sympy:sympify", None, ["sympy"]),
        ("joblib:load", None, ["joblib"]),
        ("torch.hub:load", None, ["torch"]),
        ("os:system", "os:remove", ["os"]),
    ],
)
def test_a_strangers_placement_runs_nothing(
    shell: Shell,
    write: Callable[..., Path],
    command: list[str],
    model: str | None,
    optimizer: str | None,
    packages: list[str],
) -> None:
    path = write(model, optimizer)
    code, out, err = shell(command[0], path, *command[1:])
    assert (code, out) == (2, "")
    assert " ".join(f"--trust {package}" for package in packages) + " (in Python" in err
    assert "importing runs the code of" in err
    for named in filter(None, (model, optimizer)):
        assert named in err
    assert err.count("\n") == 1
    assert nothing_ran()


def test_nothing_is_imported_before_everything_is_settled(
    shell: Shell, write: Callable[..., Path]
) -> None:
    path = write("first_trap:perceptron", "second_trap:Lion")
    code, _, err = shell("train", path, "--trust", "first_trap")
    assert code == 2
    assert "names optimizer second_trap:Lion, which" in err
    assert "--trust second_trap (in" in err
    # Options of a class that a file names are checked by importing it.
    code, _, err = shell("train", path, "--trust", "first_trap", "--lr", "0.5")
    assert "names optimizer second_trap:Lion, which" in err
    with pytest.raises(InvalidInput, match="--trust second_trap"):
        PipelineTrainer(path, out="out", trust="first_trap")
    assert nothing_ran()


@pytest.mark.timeout(60)
@pytest.mark.system
def test_who_trusts_all_packages_trains(shell: Shell, write: Callable[..., Path]) -> None:
    path = write("first_trap:perceptron", "second_trap:Lion")
    trust = ["--trust", "first_trap", "--trust", "second_trap"]
    code, out, err = shell("train", path, *_DATA, *trust, "--out", "runs/x")
    assert code == 0, err
    told = " ".join(out.split())
    assert f"imports first_trap:perceptron (model), as {path} says" in told
    assert f"imports second_trap:Lion (optimizer), as {path} says" in told
    assert Path("trapped").exists()
    # The run remembers.
    code, out, err = shell("train", path, *_DATA, "--out", "runs/x", "--resume")
    assert code == 0, err
    assert shell("train", path, *_DATA, "--out", "runs/y")[0] == 2


def test_what_a_user_names_needs_no_flag(shell: Shell, write: Callable[..., Path]) -> None:
    assert shell("capture", "first_trap:perceptron", "-o", "graph.json")[0] == 0
    Path("trapped").unlink()
    sys.modules.pop("first_trap")
    # An optimizer of the user's takes the place of the file's, which is not imported.
    path = write("tests.support.models.small:perceptron", "second_trap:Lion")
    code, _, err = shell(
        "train", path, "--trust", "tests", "--optimizer", "first_trap:Lion", "--data", "nothing"
    )
    assert code == 2
    assert "data 'nothing' is unknown" in err
    assert "second_trap" not in sys.modules


def test_show_imports_nothing(shell: Shell, write: Callable[..., Path]) -> None:
    path = write("first_trap:run", "second_trap:Lion")
    code, out, err = shell("show", path)
    assert code == 0, err
    assert "first_trap:run" in out
    assert "second_trap:Lion" in out
    assert nothing_ran()


def test_the_simulator_imports_nothing(shell: Shell, write: Callable[..., Path]) -> None:
    code, _, err = shell("timeline", write("first_trap:run"), "--from", "simulator")
    assert code == 2
    assert "--profile" in err
    assert nothing_ran()


@pytest.mark.parametrize("kind", [ModelReference, OptimizerSpec, LearningRateSchedule])
def test_by_itself_a_name_is_refused(kind: Any) -> None:
    """Whoever makes one from data, and forgets to ask, imports nothing."""
    given = {"name": "first_trap:Lion"}
    for found in (
        kind(**given),
        kind.model_validate(given),
        kind.model_validate_json(json.dumps(given)),
    ):
        with pytest.raises(InvalidInput, match="'first_trap:Lion' is not trusted"):
            found.build() if kind is ModelReference else found.check()
        allowed = found.as_named_by_user()
        assert allowed == found
        assert found.refused
        assert not allowed.refused
        # Nor does a file say it of itself.
        assert kind.model_validate(allowed.model_dump()).refused
    with pytest.raises(ValueError, match="_allowed"):
        kind.model_validate({**given, "_allowed": True})
    assert nothing_ran()


def test_a_document_from_python_is_as_good_as_its_parts(write: Callable[..., Path]) -> None:
    path = write("first_trap:perceptron")
    assert read_placement(path).model.refused
    assert not read_placement(path, trust=["first_trap", "other"]).model.refused
    assert read_placement(path, trust="first_trap") == read_placement(path)
    with pytest.raises(InvalidInput, match="trust is 'first_trap:run'; expected the name of a pac"):
        read_placement(path, trust="first_trap:run")
    assert trusted_packages(("a", "b")) == {"a", "b"}


# Memory


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run with a package that is trusted."""
    folder = tmp_path / "runs" / "mine"
    with open_run_folder(folder, "train_agent.py", {"seed": 1}, resume=False):
        assert remember_trust(folder, [ModelReference.named("first_trap:perceptron")]) is None
    return folder


def test_a_run_folder_is_remembered(run: Path, tmp_path: Path) -> None:
    assert remembered_trust(run) == {"first_trap"}
    os.symlink(run, tmp_path / "link")
    assert remembered_trust(tmp_path / "link") == {"first_trap"}
    assert remembered_trust(tmp_path / "other") == set()
    states = list((tmp_path / "state").rglob("*.json"))
    assert len(states) == 1
    assert states[0].stat().st_mode & 0o777 == 0o600
    assert not [path for path in run.rglob("*") if "trust" in path.name]


def test_an_optimizer_of_a_parameter_group_is_remembered_too(run: Path) -> None:
    group = ParameterGroup.parse("*", optimizer="second_trap:Lion", lr=0.1)
    assert remember_trust(run, [OptimizerSpec.parse("adam", [group])]) is None
    assert remembered_trust(run) == {"second_trap"}


def test_a_folder_of_somebody_else_brings_no_trust(
    run: Path, tmp_path: Path, write: Callable[..., Path], shell: Shell
) -> None:
    """An archive of the very same run, with a model that a stranger has changed."""
    write("first_trap:run", to="runs/mine/placement.json")
    archive = shutil.make_archive(str(tmp_path / "sent"), "tar", run)
    shutil.unpack_archive(archive, tmp_path / "elsewhere")
    assert remembered_trust(tmp_path / "elsewhere") == set()
    shutil.rmtree(run)
    shutil.unpack_archive(archive, run)
    assert (run / "run.json").exists()
    assert remembered_trust(run) == set()
    assert shell("train", run / "placement.json")[0] == 2
    assert nothing_ran()


def test_a_folder_that_was_moved_or_packages_that_were_are_not_trusted(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    (stranger / "first_trap.py").write_text(_TRAP)
    monkeypatch.chdir(stranger)
    # The package of that name is another one here.
    assert remembered_trust(run) == set()
    monkeypatch.chdir(tmp_path)
    assert remembered_trust(run) == {"first_trap"}
    run.rename(tmp_path / "moved")
    assert remembered_trust(tmp_path / "moved") == set()


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_text("{"),
        lambda path: path.write_bytes(b"\xff\x00"),
        lambda path: path.unlink(),
        lambda path: path.chmod(0o666),
        lambda path: (path.unlink(), path.mkdir()),
    ],
)
def test_a_damaged_memory_is_none(
    run: Path, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    (state,) = (tmp_path / "state").rglob("*.json")
    damage(state)
    assert remembered_trust(run) == set()


def test_a_memory_that_cannot_be_written_is_told(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    reason = remember_trust(run, [ModelReference.named("first_trap:perceptron")])
    assert reason is not None
    assert "cannot be remembered" in reason
    assert "give --trust again" in reason
    assert remembered_trust(run) == set()
    # Nothing to remember is nothing to tell.
    assert remember_trust(run, [ModelReference.named("alexnet"), OptimizerSpec()]) is None


# The current folder


def test_the_current_folder_takes_nobodys_place(shell: Shell, tmp_path: Path) -> None:
    """It is looked at last, and only for a package that is nowhere else."""
    for name in ("networkx", "sympy", "json"):
        (tmp_path / f"{name}.py").write_text("open('trapped', 'w')")
    code, _, err = shell("capture", "networkx:path_graph", "-o", "g.json")
    assert code == 2
    assert "raised TypeError" in err
    assert str(tmp_path) not in sys.path
    assert not Path("trapped").exists()
    assert shell("capture", "first_trap:perceptron", "-o", "g.json")[0] == 0
    assert sys.path[-1] == str(tmp_path)
