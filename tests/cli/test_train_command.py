"""``drlpp train``, as a user types it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.programs.shell import Finished, drlpp
from tests.support.training.killing import killed_after_saving

MODEL = "tests.support.models.small:perceptron"
DATA = "tests.support.models.small:separable"

Train = Callable[..., Finished]


@pytest.fixture
def path(files: dict[str, Path]) -> Path:
    return files["PLACEMENT"]


@pytest.fixture
def train(path: Path) -> Train:
    """Runs ``drlpp train`` with more options."""
    return lambda *more: drlpp("train", path, "--data", DATA, "--model", MODEL, *more)


@pytest.mark.timeout(60)
def test_parameters_in_groups(train: Train, path: Path) -> None:
    """On the command line, and again from what the run has kept."""
    decay = ("--optimizer-option", "weight_decay=0.1")
    groups = ["*.bias:weight_decay=0", "*.weight: lr=0.002"]
    given = [part for group in groups for part in ("--parameter-group", group)]
    ended = train(*decay, *given, "--epochs", 1)
    assert ended.code == 0, ended.err
    assert "; *.bias: weight_decay=0; *.weight: lr=0.002" in ended.words
    # What staleness costs stands before all epochs.
    epochs = re.split(r"\nepoch +\d", ended.out)
    assert "\nbetween the forward and" in epochs[0]
    assert len(epochs) == 2
    assert re.match(r"  loss .* minibatches/s  left 0:00:00\n", epochs[1])
    resumed = ["--epochs", "2", "--resume"]
    assert train(*decay, *given[:2], *resumed).code == 2
    ended = train("--config", path.parent / "training" / "run.yaml", *resumed)
    assert ended.code == 0, ended.err


@pytest.mark.timeout(60)
def test_a_run_is_resumed_with_its_own_options(train: Train, path: Path) -> None:
    """By the file that it has kept them in; without them it is refused, by the name of one."""
    assert train("--epochs", 1, "--seed", 3, "--lr", 0.02).code == 0
    assert "cannot be resumed with" in train("--resume").refusal
    kept = ("--config", path.parent / "training" / "run.yaml")
    ended = drlpp("train", *kept, "--resume", "--epochs", 2)
    assert ended.code == 0, ended.err
    assert "epoch   2" in ended.out


def test_it_resumes_on_fewer_workers_and_on_more(train: Train, path: Path) -> None:
    assert train("--epochs", 1).code == 0
    for workers, configuration in ((1, "1"), (3, "1-1-1")):
        ended = train("--epochs", 3, "--workers", workers, "--resume")
        assert ended.code == 0
        line = f"{path} is for 2 workers; for {workers} it is {configuration} (even cut)"
        assert line in ended.out
    assert "epoch   2" not in ended.out, "all epochs were done on one worker"


@pytest.mark.timeout(60)
def test_training_stops_early_by_what_is_asked_for(train: Train) -> None:
    """Nothing is learned at this rate: two epochs more are waited for."""
    ended = train("--epochs", 9, "--early-stopping", 2, "--lr", 1e-30)
    assert ended.code == 0, ended.err
    assert ended.out.count("  held-out loss") == 3


@pytest.mark.system
def test_one_command_suits_a_loop_that_restarts_it(
    tmp_path: Path, path: Path, train: Train
) -> None:
    """Killed before its first checkpoint, and between two; it says once that it begins."""
    out = tmp_path / "out"
    command = ["train", str(path), "--data", DATA, "--model", MODEL, "--out", str(out)]
    with subprocess.Popen(
        [sys.executable, "-c", "from drlpp.cli.main import main; main()", *command, "--resume"],
        stdout=subprocess.PIPE,
        text=True,
    ) as killed:
        assert killed.stdout is not None
        # It says what it does while it does it.
        assert any(line.startswith(f"training {MODEL}") for line in killed.stdout)
        killed.kill()
    assert (out / "run.json").exists()
    epochs = ("--epochs", 3, "--out", out, "--resume")
    with killed_after_saving(1):
        train(*epochs)
    ended = train(*epochs)
    assert ended.code == 0, ended.err
    assert "epoch   3" in ended.out
    assert "holds nothing to resume" not in ended.out
    for file in ("checkpoint.pt", "model.pt"):
        (out / file).unlink()
    ended = train(*epochs)
    assert ended.code == 0, ended.err
    assert ended.words.count("holds nothing to resume yet: the run begins") == 1
    assert "epoch   1" in ended.out
