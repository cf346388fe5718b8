"""Live races as a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.time_to_loss.live_races import LiveRace, read_race, table
from drlpp.errors import InvalidInput
from drlpp.placement.placement import Placement
from drlpp.racing.contenders import Contender
from drlpp.racing.curves import Curve, Point
from drlpp.racing.halving import Training
from drlpp.racing.training_race import run_race
from drlpp.schedule.method import Method
from tests.support.training.races import race_of

SYNC = Method(schedule="1f1b-flush", policy="sync")
ZB_H1 = Method(schedule="zb-h1", policy="sync")


ZB_V = Method(schedule="zb-v", policy="sync")
TWO, BOTH = Placement.from_assignment([0, 1], [0, 1]), Placement.from_assignment([0, 0], [0, 0])


def contender(found_by: str, placement: Placement | None, method: Method) -> Contender:
    return Contender(
        found_by=found_by, placement=placement, method=method, threads=None if placement else 1
    )


def ended(seconds_per_minibatch: dict[Contender, float]) -> LiveRace:
    """A race in which everybody's loss is 0.4 after four minibatches."""
    taken = list(seconds_per_minibatch.values())
    race = race_of(seconds_per_minibatch, rates=(0.1,), target_loss=0.5, halving=False)

    def train(training: Training, enough: Callable[[Curve], bool]) -> Curve:
        second = taken[training.candidate] * (1 + 0.01 * training.seed)
        points = [Point(minibatches=0, seconds=0, loss=1.0)]
        curve = Curve(points=tuple(points))
        while not enough(curve):
            done = len(points)
            loss = 0.4 if done >= 4 else 0.9
            points.append(Point(minibatches=done, seconds=second * done, loss=loss))
            curve = Curve(points=tuple(points))
            race_with.append((training, curve))
        return curve

    race_with: list[tuple[Training, Curve]] = []
    end = run_race(race, train)
    for training, curve in race_with:
        race = race.with_curve(training, curve)
    return LiveRace("decoder-2-fast", race, end)


def test_a_table_of_live_races_has_the_soonest_of_each_kind_and_the_verdict() -> None:
    race = ended(
        {
            contender("plain PyTorch", None, Method()): 2.0,
            contender("data-parallel", BOTH, SYNC): 1.0,
            contender("even split", TWO, Method(microbatches=2)): 1.5,
            contender("even split", TWO, SYNC): 8.0,
            contender("even split", TWO, ZB_H1): 9.0,
            contender("even split", TWO, ZB_V): 10.0,
        }
    )
    (row,) = table([race]).to_dict("records")
    assert (row["task"], row["on"], row["links"]) == ("decoder", "2", "fast")
    assert row["plain PyTorch"] == "**7.75**"
    assert row["data parallelism"] == "**3.88**"
    assert row["PipeOptim, M ≥ D"] == "**5.81**"
    assert row["PipeOptim, whole minibatches"] == "–"
    assert row["flushed 1F1B"] == "30.4"
    assert row["zero-bubble"] == "34.2"
    assert row["verdict"].startswith("data parallelism, 2.00× faster (")


def test_who_is_not_there_has_its_loss_and_when_that_was() -> None:
    race = ended(
        {
            contender("plain PyTorch", None, Method()): 2.0,
            contender("data-parallel", BOTH, SYNC): 1.0,
            contender("even split", TWO, SYNC): 8.0,
        }
    )
    end = race.end
    assert 2 not in end.result.finals
    costs = {number: cost for number, cost in end.result.costs.items() if number < 2}
    late = race._replace(end=replace(end, result=replace(end.result, costs=costs)))
    (row,) = table([late]).to_dict("records")
    assert row["plain PyTorch"] == "**7.75**"
    assert row["flushed 1F1B"] == "0.4 at 32 s"


@pytest.mark.parametrize(
    ("whole", "default"),
    [
        # 1.11 times the samples where gradients are an update late, 1.04 for half of one.
        (1.3, "**5.04**, M = 1"),
        (1.45, "5.7, M = 2"),
    ],
)
def test_the_default_is_on_all_workers_with_the_least_product(whole: float, default: str) -> None:
    race = ended(
        {
            contender("plain PyTorch", None, Method()): 2.0,
            contender("even split", TWO, Method(microbatches=2)): 1.5,
            contender("even split", TWO, Method()): whole,
            contender("exact", TWO, Method(microbatches=4)): 1.2,
        }
    )
    (row,) = table([race]).to_dict("records")
    assert row["the default"] == default
    (on_four,) = table([race._replace(name="decoder-4-fast")]).to_dict("records")
    assert on_four["the default"] == "–"


def test_a_folder_has_to_say_what_was_raced(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="TASK-ACCELERATORS-LINKS"):
        read_race(tmp_path / "decoder")
