"""What only a file names is not imported: whoever builds it names it again."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.placement.placement import Placement
from drlpp.placement.placement_file import read_placement
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.programs.shell import drlpp
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
    """An empty current folder with two packages, of which nobody knows yet."""
    for name in ("first_trap", "second_trap"):
        (tmp_path / f"{name}.py").write_text(_TRAP)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


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


_OWN = "tests.support.models.small:perceptron"


@pytest.mark.parametrize(
    ("command", "model", "optimizer", "way_out"),
    [
        (
            ["train"],
            "first_trap:run",
            None,
            "--model first_trap:run, in Python model='first_trap:run'",
        ),
        (["show", "--timeline", "run"], "first_trap:perceptron", "second_trap:Lion", " again: --"),
        (["export", "--to=torch", "-o=x"], "os:system", "os:remove", " again: --"),
    ],
)
def test_what_a_file_names_does_not_run(
    write: Callable[..., Path], command: list[str], model: str, optimizer: str | None, way_out: str
) -> None:
    code, out, err = drlpp(command[0], write(model, optimizer), *command[1:])
    assert (code, out) == (2, "")
    assert way_out in err
    assert err.count("\n") == 1
    assert nothing_ran()


@pytest.mark.timeout(60)
@pytest.mark.system
def test_a_model_and_an_optimizer_that_are_named_again_train(write: Callable[..., Path]) -> None:
    """With the options that the file has, of both: a bare name stands for what the file means."""
    path = write("first_trap:perceptron", "second_trap:Lion")
    named = ["--model", "first_trap:perceptron"]
    code, _, err = drlpp("train", path, *_DATA, *named, "--out", "runs/x")
    assert code == 2
    assert "name it again: --optimizer second_trap:Lion, in Python optimizer=Opt" in err
    assert "second_trap" not in sys.modules
    named += ["--optimizer", "second_trap:Lion"]
    code, out, err = drlpp("train", path, *_DATA, *named, "--out", "runs/x")
    assert code == 0, err
    assert "first_trap:perceptron(layers=2)" in " ".join(out.split())
    assert "second_trap:Lion (lr=0.1)" in " ".join(out.split())
    code, out, err = drlpp("train", path, *_DATA, *named, "--out", "runs/x", "--resume")
    assert code == 0, err


def test_the_fingerprint_says_whether_it_is_the_same_model(write: Callable[..., Path]) -> None:
    path = write("first_trap:perceptron")
    for other in (
        ["--model", _OWN, "--model-option", "layers=3"],
        ["--model", "first_trap:perceptron", "--model-option", "layers=3"],
        ["--model", "alexnet"],
    ):
        code, _, err = drlpp("train", path, *_DATA, *other)
        assert code == 2
        assert f"{path}: the placement is for first_trap:perceptron(layers=2) (fingerprint" in err
        assert "was made for: --model first_trap:perceptron, or, if its code" in err
    # Another name for the same model will do, as its graph is the same.
    document = read_placement(path, model=ModelReference.named(_OWN, layers=2))
    document.resolve(capture(document.model).graph)
    code, _, err = drlpp("train", path, "--model-option", "layers=2")
    assert (code, "--model-option needs the model's name as well: --model" in err) == (2, True)


def test_the_current_folder_takes_nobodys_place(tmp_path: Path) -> None:
    """It is looked at last."""
    for name in ("networkx", "sympy", "json"):
        (tmp_path / f"{name}.py").write_text("open('trapped', 'w')")
    code, _, err = drlpp("show", "networkx:path_graph")
    assert code == 2
    assert "raised TypeError" in err
    assert not Path("trapped").exists()
    assert drlpp("show", "first_trap:perceptron")[0] == 0
    assert sys.path[-1] == str(tmp_path)
