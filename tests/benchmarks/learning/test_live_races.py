"""Live races as a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.time_to_loss.live_races import LiveRace, read_race, table
from drlpp.comparison.contenders import Contender
from drlpp.errors import InvalidInput
from drlpp.placement.placement import Placement
from drlpp.schedule.method import Method
from drlpp.training_race.curves import Curve, Point
from drlpp.training_race.halving import Training
from drlpp.training_race.judging import run_race
from tests.support.training.races import race_of

SYNC = Method(schedule="1f1b-flush", policy="sync")
ZB_H1 = Method(schedule="zb-h1", policy="sync")


def test_a_table_of_live_races_has_the_soonest_of_each_kind_and_the_verdict(tmp_path: Path) -> None:
    two, both = Placement.from_assignment([0, 1], [0, 1]), Placement.from_assignment([0, 0], [0, 0])
    contenders = (
        Contender(found_by="plain PyTorch", method=Method(), threads=1),
        Contender(found_by="data-parallel", placement=both, method=SYNC),
        Contender(found_by="even split", placement=two, method=Method(microbatches=2)),
        Contender(found_by="even split", placement=two, method=ZB_H1),
    )
    race = race_of(contenders, rates=(0.1,), target_loss=0.5, halving=False)
    seconds_per_minibatch = (2.0, 1.0, 1.5, 9.0)

    def train(training: Training, enough: Callable[[Curve], bool]) -> Curve:
        """After four minibatches everybody's loss is 0.4."""
        second = seconds_per_minibatch[training.candidate] * (1 + 0.01 * training.seed)
        points = [Point(minibatches=0, seconds=0, loss=1.0)]
        curve = Curve(points=tuple(points))
        while not enough(curve):
            done = len(points)
            loss = 0.4 if done >= 4 else 0.9
            points.append(Point(minibatches=done, seconds=second * done, loss=loss))
            curve = Curve(points=tuple(points))
        return curve

    end = run_race(race, train)
    (row,) = table([LiveRace("decoder-4-fast", race, end)]).to_dict("records")
    assert (row["task"], row["on"], row["links"]) == ("decoder", "4", "fast")
    assert row["plain PyTorch"] == "**7.75**"
    assert row["data parallelism"] == "**3.88**"
    assert row["PipeOptim, M ≥ D"] == "**5.81**"
    assert row["PipeOptim, whole minibatches"] == "–"
    assert row["the soonest that flushes"] == "34.2"
    assert row["verdict"].startswith("data parallelism, 2.00 times as soon (")
    with pytest.raises(InvalidInput, match="TASK-ACCELERATORS-LINKS"):
        read_race(tmp_path / "decoder")
