"""What is said of an option that a command does not have, on the command line and in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from drlpp.cli import main as drlpp_command
from drlpp.cli.learning import learn_command
from drlpp.cli.option_hints import meant
from drlpp.schedule.method import Method
from tests.support.programs.shell import finish


def said(*arguments: object) -> str:
    """Return what a command says of its arguments, as one line."""
    done = finish(drlpp_command.main, "drlpp", *arguments)
    assert done.code == 2
    # Where modules are run by their name typer takes that for a part of the program's.
    return " ".join(done.err.replace("│", " ").split()).replace("python -m pytest.", "")


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("plan alexnet --workers 2", "did you mean --accelerators?"),
        ("plan alexnet --gpus 2", "did you mean --accelerators?"),
        ("profile alexnet --gpus=2", "did you mean --workers?"),
        ("profile alexnet --out x.json", "did you mean --output?"),
        ("race alexnet --output x", "did you mean --out?"),
        ("plan alexnet --lr 0.1", "did you mean --optimizer-option lr=…?"),
        ("learn alexnet --batch-size 4", "did you mean --model-option batch_size=…?"),
        ("train p.json --microbatch 4", "did you mean --method-option microbatches=…?"),
        ("train p.json --shedule gpipe", "did you mean --method-option schedule=…?"),
        ("plan alexnet --bandwith 1e9", "did you mean --bandwidth?"),
        # --device, which is the same to some programs, is what other commands have.
        ("plan alexnet --accelerator 2", "did you mean --accelerators?"),
        # What lies near is not what is meant, if another command has it.
        (
            "train p.json --batch-size 4",
            "drlpp learn, race, profile, plan and capture have --model-option batch_size=…",
        ),
        ("profile alexnet --epochs 2", "drlpp learn, race and train have --epochs"),
        ("doctor --early-stopping 2", "drlpp train has --early-stopping"),
        ("race --model alexnet", "write drlpp race MODEL, without --model"),
        ("cluster describe --nothing-like-it", "drlpp cluster describe --help lists the options"),
        ("plan -x", "No such option: -x; drlpp plan --help lists the options"),
    ],
)
def test_an_option_of_another_name_is_hinted_at(line: str, hint: str) -> None:
    text = said(*line.split())
    assert "No such option: -" in text
    assert hint in text
    assert "Possible" not in text


def test_a_file_with_options_has_the_same_hints(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("workers: 2\n")
    text = said("plan", "alexnet", "--config", path)
    assert "'workers' is no option of this command; did you mean 'accelerators'?" in text


def test_every_option_of_a_method_is_found_by_its_name() -> None:
    for key in Method.model_fields:
        if key != "policy":
            assert meant(key.replace("_", "-"), ["method-option"]) == f"method-option {key}=…"


def test_a_name_of_ones_own_is_never_taken_for_another() -> None:
    own = ["workers", "accelerators", "out", "output", "method-option", "precision"]
    assert [meant(name, own) for name in own] == own


@pytest.mark.parametrize("name", ["drlpp", "train_agent.py"])
def test_learn_takes_its_model_as_other_commands_do_and_by_name(name: str, tmp_path: Path) -> None:
    def learns(*arguments: object) -> str:
        if name == "drlpp":
            done = finish(drlpp_command.main, name, "learn", *arguments)
        else:
            done = finish(learn_command.main, name, *arguments)
        assert done.code == 2
        return done.err

    config = tmp_path / "run.yaml"
    config.write_text("model: written\n")
    assert "model 'given'" in learns("given")
    assert "model 'given'" in learns("--model", "given")
    assert "model 'given'" in learns("given", "--model", "given")
    assert "model 'written'" in learns("--config", config)
    # What is given counts before what is written.
    assert "model 'given'" in learns("given", "--config", config)
    assert "model 'given'" in learns("--model", "given", "--config", config)
    assert "the model is given twice, one and --model other" in learns("one", "--model", "other")
