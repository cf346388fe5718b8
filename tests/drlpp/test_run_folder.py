"""A folder belongs to one run."""

from pathlib import Path

import pytest

from drlpp.errors import InvalidInput
from drlpp.run_folder import open_run_folder

SETTINGS = {"model": "alexnet", "seed": 0}


def test_a_new_folder_is_claimed_and_resumed_by_the_same_run(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "one"
    open_run_folder(folder, "train", SETTINGS, resume=False)
    open_run_folder(folder, "train", SETTINGS, resume=True)


@pytest.mark.parametrize(
    ("command", "settings", "resume", "message"),
    [
        ("train", SETTINGS, False, "holds another run .* --resume"),
        ("train", {**SETTINGS, "seed": 1}, True, "seed = 0; it cannot be resumed with 1"),
        ("learn", SETTINGS, True, "a run of train, which learn cannot resume"),
    ],
)
def test_a_taken_folder_is_refused(
    tmp_path: Path, command: str, settings: dict[str, object], resume: bool, message: str
) -> None:
    open_run_folder(tmp_path / "run", "train", SETTINGS, resume=False)
    (tmp_path / "run" / "checkpoint.safetensors").touch()
    with pytest.raises(InvalidInput, match=message):
        open_run_folder(tmp_path / "run", command, settings, resume=resume)


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InvalidInput, match="not empty and holds no run"):
        open_run_folder(tmp_path, "train", SETTINGS, resume=False)


def test_there_has_to_be_something_to_resume(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no run to resume"):
        open_run_folder(tmp_path / "run", "train", SETTINGS, resume=True)
    assert not (tmp_path / "run").exists()


def test_another_attempt_begins_the_run_or_goes_on_with_it(tmp_path: Path) -> None:
    for _ in range(2):
        open_run_folder(tmp_path / "run", "train", SETTINGS, resume=False, restarted=True)
    with pytest.raises(InvalidInput, match="a run of train"):
        open_run_folder(tmp_path / "run", "learn", SETTINGS, resume=False, restarted=True)


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_that_kept_nothing_is_begun_anew(tmp_path: Path, resume: bool) -> None:
    folder = open_run_folder(tmp_path / "run", "train", SETTINGS, resume=False)
    (folder / "events.out.tfevents.1").touch()
    other = {**SETTINGS, "seed": 1}
    open_run_folder(folder, "train", other, resume=resume)
    assert [file.name for file in folder.iterdir()] == ["run.json"]
    (folder / "checkpoint.safetensors").touch()
    open_run_folder(folder, "train", other, resume=True)
    with pytest.raises(InvalidInput, match="seed = 1; it cannot be resumed with 0"):
        open_run_folder(folder, "train", SETTINGS, resume=True)
