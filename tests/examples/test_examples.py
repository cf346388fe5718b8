"""Every example does what its page says, and those that train end with weights of their own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from drlpp.cli.main import main
from drlpp.models.model_reference import ModelReference
from drlpp.placement.placement_file import read_placement
from examples import image_classification, language_model, translation
from tests.support.programs.shell import finish
from tests.support.programs.without import without_packages

ROOT = Path(__file__).parent.parent.parent

pytestmark = pytest.mark.timeout(240)


def numbers(name: str, printed: str) -> list[float]:
    """All numbers that follow ``name`` in what an example printed."""
    return [float(number) for number in re.findall(rf"{name} (\S+)", printed)]


def trained(out: Path) -> dict[str, Tensor]:
    """The weights of a run, which are finite, and none of them as the factory made it."""
    path = out / "placement.json"
    model = read_placement(path, model=read_placement(path).model.name).model
    initial = dict(model.build().module.named_parameters())
    state = torch.load(out / "training" / "model.pt", weights_only=True)
    for name, weight in initial.items():
        assert state[name].isfinite().all(), name
        assert not torch.equal(state[name], weight), name
    return state


def run(example: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"examples.{example}", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.mark.system
def test_an_image_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image_classification.main(epochs=3, minibatches=30, out=tmp_path)
    printed = capsys.readouterr().out
    assert re.search("training on 1(-1)?, 1f1b, pipeoptim, ", printed)
    assert ", gradients clipped to 5, " in printed
    losses = numbers("loss", printed)
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    trained(tmp_path)
    # The module's own accuracy is that of the best epoch in the pipeline, and above chance.
    (recognised,) = numbers("the module recognises", printed)
    assert recognised == max(numbers("accuracy", printed)) > 0.3
    assert list((tmp_path / "training").glob("events.out.tfevents*"))


@pytest.mark.system
def test_a_translation_model_goes_on_where_it_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    translation.main(epochs=2, minibatches=40, out=tmp_path)
    printed = capsys.readouterr().out
    assert "training on 1-1, 1f1b, stash" in printed
    characters = numbers("held-out characters", printed)
    assert characters[0] < characters[1]
    assert characters[1] > 0.4
    state = trained(tmp_path)
    document = read_placement(tmp_path / "placement.json")
    assert document.measurement is not None
    encoder, decoder = document.stages
    assert len(encoder.operators) > 1
    assert len(decoder.operators) > len(encoder.operators)
    sentences = printed.splitlines()[-5:]
    assert all(re.fullmatch(r"  [a-z ]+ → [0-9-]{10}", sentence) for sentence in sentences)
    # Nothing is trained again; the last epoch was saved before its evaluation, so that is repeated.
    translation.main(epochs=2, minibatches=40, out=tmp_path, resume=True)
    again = capsys.readouterr().out
    assert "epoch  1" not in again
    assert again.splitlines()[-5:] == sentences
    assert all(torch.equal(weight, state[name]) for name, weight in trained(tmp_path).items())


def test_a_character_sees_only_those_before_it() -> None:
    torch.manual_seed(0)
    module = language_model.LanguageModel().eval()
    text = torch.randint(100, (1, language_model.LENGTH))
    changed = text.clone()
    changed[0, 30] = (text[0, 30] + 1) % 100
    same = (module(text) == module(changed)).all(2)[0]
    assert same[:30].all()
    assert not same[30:].any()


@pytest.mark.system
def test_what_cannot_work_is_one_line(tmp_path: Path) -> None:
    done = run("translation", "--placement", str(tmp_path / "none.json"))
    assert done.returncode == 1
    assert done.stderr == f"error: {tmp_path / 'none.json'}: no such file\n"
    assert ModelReference.named("examples.translation:translator").build().batch_size == 32


@pytest.mark.system
def test_ppo_improves_placements() -> None:
    done = run("improve_placements", "--steps", "1024", "--problems", "2")
    assert not done.returncode, done.stderr
    untrained, trained_a_little = done.stdout.splitlines()
    assert re.fullmatch(r"untrained: [0-9.]+ times as fast as the planners' best", untrained)
    assert re.fullmatch(r"1024 steps: [0-9.]+", trained_a_little)


NOTEBOOK = Path(__file__).parents[2] / "examples" / "own_costs.ipynb"


def test_every_cell_prints_what_the_notebook_shows() -> None:
    notebook = json.loads(NOTEBOOK.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    between = "print('-' * 9)"
    program = f"\n{between}\n".join("".join(cell["source"]) for cell in cells)
    keep = "numpy networkx pydantic pyyaml rich"
    ran = subprocess.run(
        [sys.executable, "-c", without_packages(program, keep)], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    shown = ["".join(part for out in cell["outputs"] for part in out["text"]) for cell in cells]
    assert ran.stdout.split("---------\n") == shown


EXAMPLE = Path("examples/rayjob.yaml")


@pytest.fixture
def job() -> Any:
    return yaml.safe_load(EXAMPLE.read_text())


def test_its_program_takes_these_options(job: Any) -> None:
    program, script, *options = job["spec"]["entrypoint"].split()
    assert (program, script) == ("python", "train_agent.py")
    help_ = finish(main, "drlpp", "learn", "--help")
    assert help_.code == 0
    assert all(option in help_.out for option in options if option.startswith("--"))
    assert job["spec"]["rayClusterSpec"]["rayVersion"] in Path("constraints.txt").read_text()
