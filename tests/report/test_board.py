"""TensorBoard's events of races: every round of every contender."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from drlpp.placement.placement import Placement
from drlpp.racing.comparison import Comparison
from drlpp.racing.contenders import Contender
from drlpp.racing.training_race import Curve, Point, TrainingRun
from drlpp.report.board import write_race, write_training_race
from drlpp.schedule.method import Method
from tests.support.measured import measurement
from tests.support.training.races import race_of

TWO = Placement.from_assignment([0, 1], [0, 1])


def _scalars(folder: Path) -> dict[str, dict[str, list[tuple[int, float]]]]:
    found = {}
    for path in sorted((folder / "tensorboard" / "race").iterdir()):
        board = EventAccumulator(str(path)).Reload()
        found[path.name] = {
            tag: [(event.step, round(event.value, 6)) for event in board.Scalars(tag)]
            for tag in board.Tags()["scalars"]
        }
    return found


def _contenders(*rounds: tuple[float, ...]) -> tuple[Contender, ...]:
    return tuple(
        Contender(
            found_by="guided",
            placement=TWO,
            method=Method(in_flight_per_link=depth),
            measurements=tuple(measurement(seconds) for seconds in found),
        )
        for depth, found in enumerate(rounds)
    )


def test_every_round_is_written_and_a_race_that_continues_replaces_it(tmp_path: Path) -> None:
    race = Comparison(model="a", minibatches=2, contenders=_contenders((0.5,), (0.25, 0.125)))
    write_race(tmp_path, race)
    longer = Comparison(model="a", minibatches=2, contenders=_contenders((0.5, 1.0), (0.25, 0.125)))
    write_race(tmp_path, longer)
    tag = "race/seconds_per_minibatch"
    assert list(_scalars(tmp_path).values()) == [
        {tag: [(1, 0.5), (2, 1.0)]},
        {tag: [(1, 0.25), (2, 0.125)]},
    ]


def test_losses_of_a_race_are_written_by_minibatch_and_by_time(tmp_path: Path) -> None:
    points = (
        Point(minibatches=0, seconds=0, loss=2.0),
        Point(minibatches=8, seconds=0.5, loss=None),
        Point(minibatches=16, seconds=1.25, loss=1.5),
    )
    race = race_of(
        [Contender(found_by="plain PyTorch", method=Method(), threads=1)],
        rates=(0.1,),
        minibatches=8,
        every=8,
        runs=(TrainingRun(candidate=0, rate=0.1, curve=Curve(points=points)),),
    )
    write_training_race(tmp_path, race)
    (found,) = _scalars(tmp_path).values()
    assert found["race/held_out_loss_by_minibatch"] == [(0, 2.0), (16, 1.5)]
    assert found["race/held_out_loss_by_millisecond"] == [(0, 2.0), (1250, 1.5)]
