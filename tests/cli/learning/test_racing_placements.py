"""``drlpp race --compare``: what ``drlpp learn`` and ``drlpp plan`` wrote, trained to a loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from drlpp.cli import main
from drlpp.io.documents import read_document
from drlpp.placement.placement_file import PlacementFile
from drlpp.racing.training_race import TrainingRace
from tests.support.models.classified_points import NAME
from tests.support.programs import shell

MODEL = f"{NAME}:classifier"


def drlpp(*arguments: object) -> shell.Finished:
    return shell.finish(main.main, "drlpp", *arguments)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A placement that was learned, and one that was planned, of the same model."""
    folder = tmp_path_factory.mktemp("placements")
    learned, planned = folder / "run" / "placement.json", folder / "planned.json"
    done = drlpp(
        *("learn", MODEL, "--workers", 2, "--out", learned.parent, "--budget", 2, "--rounds", 1),
        *("--minibatches", 4, "--repetitions", 1, "--finalists", 1),
        *("--method-option", "microbatches=1"),
    )
    assert done.code == 0, done.err
    costs = ("--profile", learned.parent / "profile.json")
    costs += ("--cluster", learned.parent / "cluster.yaml")
    done = drlpp("plan", MODEL, *costs, "--out", planned)
    assert done.code == 0, done.err
    return {"learn": learned, "plan": planned}


@pytest.mark.system
def test_placements_that_were_written_by_learn_and_plan_take_part(
    files: dict[str, Path], tmp_path: Path
) -> None:
    usual = ("race", MODEL, "--data", f"{NAME}:points", "--workers", 2, "--target-loss", 1.05)
    usual += ("--rates", 1, "--repetitions", 1, "--out", tmp_path / "race")
    given = [part for path in files.values() for part in ("--compare", path)]
    done = drlpp(*usual, *given)
    assert done.code == 0, done.err
    race = read_document(tmp_path / "race" / "race.json", TrainingRace)
    racing = [one.candidate for one in race.candidates if one.candidate is not None]
    names = [name for stage in _file(files["learn"]).stages for name in stage.operators]
    for path in files.values():
        placed = [[names.index(name) for name in stage.operators] for stage in _file(path).stages]
        assert _file(path).method in [one.method for one in racing]
        assert placed in [[[*stage.operators] for stage in one.placement.stages] for one in racing]
    # The same placements continue it, and others do not.
    assert drlpp(*usual, *given, "--resume").code == 0
    done = drlpp(*usual, *given[:2], "--resume")
    assert done.code == 2
    assert "placements" in done.err


def _file(path: Path) -> PlacementFile:
    return read_document(path, PlacementFile)
