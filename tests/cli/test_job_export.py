"""What ``drlpp learn --data`` exports and says, whoever has won the race."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from drlpp.capturing.capture import capture
from drlpp.cli.race_command import export_winner
from drlpp.io.documents import read_document
from drlpp.models.model_reference import ModelReference
from drlpp.placement.placement_file import PlacementFile
from drlpp.racing.comparison import Comparison
from drlpp.racing.contenders import Contender
from drlpp.racing.rivals import PLAIN
from drlpp.racing.to_loss import Course, RaceData
from drlpp.racing.training_race import Final, RaceEnd
from drlpp.runtime import ClusterSession
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.specs.cluster import Link, local_cluster
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.measured import measurement
from tests.support.models.classified_points import NAME
from tests.support.training.pipelines import in_a_row
from tests.support.training.races import race_of

CLUSTER = local_cluster(2, Link(bandwidth_bytes_per_second=1e9))


@pytest.fixture(scope="module")
def session() -> Iterator[ClusterSession]:
    captured = capture(ModelReference.named(f"{NAME}:classifier"))
    with ClusterSession(captured, 2, optimizer=OptimizerSpec.parse("adam", lr=0.01)) as session:
        yield session


def told(
    session: ClusterSession, folder: Path, capsys: pytest.CaptureFixture[str], *seconds: float
) -> str:
    """Return what is printed after a race in which plain PyTorch and two pipelines took so long.

    An infinite time is of one that was not there.
    """
    stash = choose_method("stash", {"microbatches": 2})
    placement = in_a_row(session.graph, 0, 1)
    race = race_of(
        (
            Contender(found_by=PLAIN, method=Method(), threads=1),
            Contender(found_by="searching", placement=placement, method=Method()),
            Contender(found_by="even split", placement=placement, method=stash),
        ),
        rates=(0.01,),
        data=f"{NAME}:points",
    )
    costs = {number: cost for number, cost in enumerate(seconds) if cost < float("inf")}
    finals = {
        number: [Final(cost * wobble, True) for wobble in (0.99, 1.0, 1.01)]
        for number, cost in costs.items()
    }
    finalists = sorted(costs, key=costs.__getitem__)
    end = RaceEnd(race, 0.5, 60.0, {0: 0.01, 1: 0.03, 2: 0.05}, {}, costs, finalists, finals)
    course = Course(session, race, RaceData(session.captured, f"{NAME}:points"), folder)
    measured = Contender(
        found_by="searching",
        placement=placement,
        method=Method(),
        measurements=(measurement(0.004),),
    )
    comparison = Comparison(model="a", minibatches=4, contenders=(measured,))
    export_winner(folder, comparison, course, end, CLUSTER)
    return " ".join(capsys.readouterr().out.split())


def test_the_winner_is_exported_and_what_to_do_is_said(
    session: ClusterSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where plain PyTorch or nothing has won, no command trains with a placement."""
    path = tmp_path / "placement.json"
    for seconds, said in (
        ((5.0, 8.0, 9.0), "use plain PyTorch, as the race says"),
        ((), "no candidate won the race"),
    ):
        printed = told(session, tmp_path, capsys, *seconds)
        assert printed.startswith(said)
        assert "drlpp train" not in printed
        assert not path.exists()
    for plain in (10.0, float("inf")):
        printed = told(session, tmp_path, capsys, plain, 5.0, 8.0)
        assert f"exported to {path}: 1-1, found by searching, the winner of the race" in printed
        model = f"--model {NAME}:classifier --data {NAME}:points"
        assert f"train with it: drlpp train {path} {model}" in printed
    document = read_document(path, PlacementFile)
    assert document.optimizer.settings == OptimizerSpec.parse("adam", lr=0.03).settings
    assert document.measurement is not None
