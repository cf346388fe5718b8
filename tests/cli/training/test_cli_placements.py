"""``drlpp train`` with placement files that somebody has edited: one line, exit code 2."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drlpp.capturing.capture import capture
from drlpp.cli.main import main
from drlpp.io.documents import write_document
from drlpp.models.model_reference import ModelReference
from drlpp.placement.placement import Placement
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.training.killing import killed_after_saving
from tests.support.training.placement_files import file_of

MODEL = "tests.support.models.small:perceptron"


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> str:
    captured = capture(ModelReference.named(MODEL, layers=2))
    placement = Placement.from_assignment([0, 0, 0, 1, 1], (0, 1))
    document = file_of(captured, placement, optimizer=OptimizerSpec())
    path = tmp_path_factory.mktemp("placement") / "placement.json"
    return write_document(path, document).read_text()


@pytest.fixture
def path(tmp_path: Path, content: str) -> Path:
    """A placement file of the test's own."""
    path = tmp_path / "placement.json"
    path.write_text(content)
    return path


Train = Callable[..., tuple[int, Any]]


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], path: Path) -> Train:
    """Runs ``drlpp train`` with more options; gives its exit code, and what it told."""

    def train(*more: str) -> tuple[int, Any]:
        data = ["--data", "tests.support.models.small:separable", "--model", MODEL]
        monkeypatch.setattr(sys, "argv", ["drlpp", "train", str(path), *data, *more])
        with pytest.raises(SystemExit) as stop:
            main()
        return int(stop.value.code or 0), capsys.readouterr()

    return train


def _empty_stage(file: dict[str, Any]) -> None:
    file["stages"][1]["operators"], moved = [], file["stages"][1]["operators"]
    file["stages"][0]["operators"] += moved


def _change(*path: object, to: object) -> Callable[[dict[str, Any]], None]:
    def change(file: dict[str, Any]) -> None:
        inner: Any = file
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_empty_stage, "stage 1 has no operators"),
        (_change("stages", 0, "operators", 0, to="0.0.liner"), "did you mean '0.0.linear'?"),
        (_change("configuration", to="2"), "field 'configuration' is 2, but the stages are 1-1"),
        (_change("model", "options", "layers", to=3), "field 'graph_fingerprint' is"),
        (
            _change("model", "name", to="no.module:nothing"),
            "name the model that it was made for: --model no.module:nothing, or plan",
        ),
        (_change("version", to=2), "written by a newer drlpp"),
        (
            _change("optimizer", "options", to={"lr": -1.0}),
            "field 'optimizer': optimizer sgd: Invalid learning rate: -1.0",
        ),
    ],
)
def test_an_edited_placement_is_one_line(
    train: Train,
    path: Path,
    edit: Callable[[dict[str, Any]], None],
    message: str,
) -> None:
    edited = json.loads(path.read_text())
    edit(edited)
    path.write_text(json.dumps(edited))
    status, told = train()
    assert status == 2
    assert told.err.startswith("drlpp: error: ")
    assert message in told.err
    assert told.err.count("\n") == 1
    # What is about to be imported is told before anything is.
    assert re.fullmatch(r"(imports \S+ \(model\), as \S+ says\n)?", told.out)
    assert not (path.parent / "training").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--elastic", "2"], "--elastic 2: expected MIN:MAX, such as 2:4"),
        (["--elastic", "1:2", "--workers", "1"], "says how many workers there are; leave out"),
        (
            ["--minibatches", "3"],
            "minibatches belongs to loaders; tests.support.models.small:separable",
        ),
        (["--lr", "-3"], "optimizer sgd: Invalid learning rate: -3.0"),
        (["--optimizer-option", "beta=1"], "optimizer sgd has no option 'beta'; it has lr"),
        (["--parameter-group", "*.bias weight_decay=0"], "expected 'PATTERN …: KEY=VALUE …'"),
        (["--parameter-group", "*.bia: lr=1"], "'*.bia' of a parameter group matches no trained"),
        (["--lr", "1", "--optimizer-option", "lr=2"], "the learning rate is given twice: 1 and 2"),
        (["--policy", "gpipe"], "policy 'gpipe' is unknown; there are sync, vanilla, stash"),
        (["--policy", "2bw"], "minibatches as are in flight, 2 with this placement; accumulate"),
        (
            ["--method-option", "microbatches=3"],
            "samples cannot be divided into 3 equal microbatches",
        ),
        (
            ["--method-option", "precision=bfloat16", "--method-option", "recompute=false"],
            "leave out recompute=false",
        ),
        (["--lr-schedule", "cosine"], "learning-rate schedule 'cosine' is unknown"),
        (["--lr-schedule", "T_max=3"], "expected NAME KEY=VALUE …, like cosineannealing"),
        (["--lr-schedule", "exponential gamma=-1"], "gives the learning rate -"),
        (["--early-stopping", "soon"], "expected a number of epochs"),
        (["--early-stopping", "2 delta=1"], "'delta': is unknown here; it has patience, min_delta"),
        (["--early-stopping", "2 monitor=accuracy"], "Input should be 'score' or 'loss'"),
    ],
)
def test_bad_options_are_one_line_and_claim_no_folder(
    train: Train,
    path: Path,
    more: list[str],
    message: str,
) -> None:
    status, told = train(*more)
    assert status == 2
    assert message in told.err
    assert told.err.count("\n") == 1
    assert not (path.parent / "training").exists()


@pytest.mark.timeout(60)
def test_parameters_in_groups(train: Train, path: Path) -> None:
    """On the command line, and again without a word in the placement that was trained."""
    groups = ["*.bias: weight_decay=0", "*.weight: optimizer=adamw lr=0.002"]
    given = [part for group in groups for part in ("--parameter-group", group)]
    status, told = train("--optimizer-option", "weight_decay=0.1", *given)
    assert status == 0, told.err
    assert "; *.bias: weight_decay=0; *.weight: adamw (lr=0.002, " in told.out.replace("\n", " ")
    resumed = ["--epochs", "2", "--resume"]
    status, told = train("--optimizer-option", "weight_decay=0.1", *given[:2], *resumed)
    assert status == 2
    status, told = train("--optimizer-option", "weight_decay=0.1", *given, *resumed)
    assert status == 0, told.err


@pytest.mark.timeout(60)
def test_what_staleness_costs_is_printed_before_training(train: Train) -> None:
    status, told = train("--epochs", "1")
    assert status == 0
    lines = told.out.splitlines()
    (before,) = (i for i, line in enumerate(lines) if line.startswith("between the forward and"))
    (epoch,) = (i for i, line in enumerate(lines) if line.split()[:1] == ["epoch"])
    assert before < epoch


@pytest.mark.timeout(60)
def test_a_run_is_resumed_with_its_own_options(
    train: Train,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is given counts: another seed is refused, by its name. Code has to be named again."""
    assert train("--epochs", "1", "--seed", "3", "--lr", "0.02")[0] == 0
    options = (path.parent / "training" / "run.yaml").read_text()
    (path.parent / "training" / "run.yaml").write_text(f"{options}copy-every: 4\n")

    def resume(*given: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["drlpp", "train", str(path), "--resume", *given])
        with pytest.raises(SystemExit) as stop:
            main()
        printed = capsys.readouterr()
        return int(stop.value.code or 0), printed.out + printed.err

    status, told = resume()
    assert status == 2
    assert "--data tests.support.models.small:separable" in told
    code = ["--model", MODEL, "--data", "tests.support.models.small:separable"]
    status, told = resume(*code, "--seed", "4")
    assert status == 2
    assert "seed = 3" in told
    status, told = resume(*code, "--epochs", "2")
    assert status == 0, told
    assert "epoch   2" in told


def test_it_resumes_on_fewer_workers_and_on_more(train: Train, path: Path) -> None:
    assert train("--epochs", "1")[0] == 0
    for workers, configuration in (("1", "1"), ("3", "1-1-1")):
        status, told = train("--epochs", "3", "--workers", workers, "--resume")
        assert status == 0
        line = f"{path} is for 2 workers; for {workers} it is {configuration} (even cut)"
        assert line in told.out
    assert "the checkpoint is of another placement" in told.out
    assert "epoch   3" not in told.out, "all epochs were done on one worker"


@pytest.mark.timeout(60)
def test_training_stops_early_by_what_is_asked_for(train: Train) -> None:
    """A loss cannot fall by a thousand: two epochs more are waited for."""
    status, told = train("--epochs", "9", "--early-stopping", "2 monitor=loss min_delta=1e3")
    assert status == 0, told.err
    assert told.out.count("  held-out loss") == 3


@pytest.mark.system
def test_one_command_suits_a_loop_that_restarts_it(
    tmp_path: Path, path: Path, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed before its first checkpoint, and between two; it says once that it begins."""
    out = tmp_path / "out"
    command = [
        "train",
        str(path),
        "--data",
        "tests.support.models.small:separable",
        "--out",
        str(out),
    ]
    command += ["--epochs", "3", "--resume", "--model", MODEL]
    with subprocess.Popen(
        [sys.executable, "-c", "from drlpp.cli.main import main; main()", *command],
        stdout=subprocess.DEVNULL,
    ) as killed:
        while not (out / "run.json").exists():
            assert killed.poll() is None
            time.sleep(0.01)
        killed.kill()
    epochs = ("--epochs", "3", "--out", str(out), "--resume")
    with killed_after_saving(1):
        train(*epochs)
    capsys.readouterr()
    code, printed = train(*epochs)
    assert code == 0, printed.err
    assert "epoch   3" in printed.out
    assert "holds nothing to resume" not in printed.out
    (out / "checkpoint.safetensors").unlink()
    (out / "model.pt").unlink()
    code, printed = train(*epochs)
    assert code == 0, printed.err
    assert " ".join(printed.out.split()).count("holds nothing to resume yet: the run begins") == 1
    assert "epoch   1" in printed.out
