"""The wheel: all of the package is in it, and it is used where there is nothing else."""

import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
FOLDERS: dict[str, str] = SETUP["package-dir"]
"""Where each package at the top of the repository lies; the others are below these."""

MODEL = """
import torch
from torch import nn
from torch.nn import functional as F


def perceptron(batch_size: int = 8):
    module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    return module, torch.randn(batch_size, 16), torch.randint(4, (batch_size,)), F.cross_entropy


def data(example):
    inputs, targets = torch.randn(96, 16), torch.randint(4, (96,))
    return (inputs[:64], targets[:64]), (inputs[64:], targets[64:])
"""


def files_on_disk() -> Iterator[tuple[str, str]]:
    """Every file of the package: the package that it belongs to, and its place in a wheel."""
    for package, folder in FOLDERS.items():
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                below = path.relative_to(ROOT / folder)
                packages = [
                    p for p in below.parents if (ROOT / folder / p / "__init__.py").exists()
                ]
                inner = ".".join((package, *packages[0].parts))
                yield inner, f"{package.replace('.', '/')}/{below.as_posix()}"


def test_every_folder_of_modules_is_a_package_that_is_installed() -> None:
    assert set(SETUP["packages"]) == {package for package, _ in files_on_disk()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Links to what is here, since building leaves folders beside pyproject.toml.
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for name in ("pyproject.toml", "README.md", "LICENSE", *FOLDERS.values()):
        (source / name).symlink_to(ROOT / name)
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    run(sys.executable, "-c", build, str(built), cwd=source)
    (path,) = built.glob("*.whl")
    return path


def run(*command: str, cwd: Path) -> str:
    """What a command printed, which has to succeed; it sees nothing of the repository."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = {name for name in opened.namelist() if ".dist-info/" not in name}
    assert names == {name for _, name in files_on_disk()}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_wheel_learns_plans_and_trains_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    environment, folder = tmp_path / "environment", tmp_path / "folder"
    folder.mkdir()
    run(sys.executable, "-m", "venv", "--without-pip", str(environment), cwd=folder)
    python = str(environment / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    run(*pip, "--no-deps", "--no-index", str(wheel), cwd=folder)
    # What drlpp depends on is that of the running environment. A .pth file there, such as that of
    # an editable drlpp, has no effect here.
    (installed,) = environment.glob("lib/python*/site-packages")
    others = [path for path in sys.path if path.endswith("site-packages")]
    (installed / "dependencies.pth").write_text("\n".join(others))
    where = "import drlpp.cli.main, drlpp.runtime; print(drlpp.__file__, drlpp.runtime.__file__)"
    for place in run(python, "-c", where, cwd=folder).split():
        assert Path(place).is_relative_to(installed)

    drlpp = str(environment / "bin" / "drlpp")
    assert "learn" in run(drlpp, "--help", cwd=folder)
    (folder / "mymodels.py").write_text(MODEL)
    short = ("--budget", "3", "--rounds", "2", "--minibatches", "4", "--repetitions", "1")
    learned = run(drlpp, "learn", "mymodels:perceptron", "--workers", "2", *short, cwd=folder)
    placement = "runs/mymodels-perceptron/placement.json"
    train = ("train", placement, "--model", "mymodels:perceptron")
    assert f"train with it: drlpp {' '.join(train)}" in learned
    train = (drlpp, *train, "--data", "mymodels:data", "--epochs", "2")
    assert "state_dict: runs/mymodels-perceptron/training/model.pt" in run(*train, cwd=folder)
    wanted = ("--workers", "2", "--bandwidth", "1e9", "--planner", "gpipe")
    run(drlpp, "plan", "mymodels:perceptron", *wanted, "-o", "planned.json", cwd=folder)
    assert "found by gpipe" in run(drlpp, "show", "planned.json", cwd=folder)
