"""Contenders race, alike ones together, and what was measured is never measured again."""

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from drlpp.errors import InvalidInput
from drlpp.measurement import FailedMeasurement, Measurement, Outcome
from drlpp.placement import Placement
from drlpp.race import RaceRules
from drlpp.report import describe
from drlpp.runtime import Comparison, Contender, compare
from drlpp.training_options import Method

PIPELINE = Method()
SYNC = Method(schedule="gpipe", policy="sync")
HALVES = Placement.from_assignment([0, 0, 1, 1], [0, 1])
SAME_HALVES = Placement(
    stages=tuple(
        stage.model_copy(update={"operators": stage.operators[::-1]}) for stage in HALVES.stages
    )
)
WHOLE = Placement.from_assignment([0] * 4, [0, 0])
UNEVEN = Placement.from_assignment([0, 1, 1, 1], [0, 1])

Key = tuple[Placement, Method]


class FakeSession:
    """Seconds by placement and method, a little more in every round; dies at a given run."""

    def __init__(self, seconds: dict[Key, float], dies_at: int = -1) -> None:
        self.captured = SimpleNamespace(reference="made-up")
        self.seconds = seconds
        self.dies_at = dies_at
        self.measured: list[Key] = []

    def measure(self, placement: Placement, minibatches: int, method: Method) -> Outcome:
        if len(self.measured) == self.dies_at:
            raise KeyboardInterrupt
        key = placement.canonical, method
        if self.seconds[key] < 0:
            raise InvalidInput("a minibatch of 3 cannot be divided into 2 microbatches")
        if self.seconds[key] == 0:
            return FailedMeasurement(failure="worker lost", reason="worker 1 was killed")
        self.measured.append(key)
        seconds = self.seconds[key] * (1 + 0.001 * (self.measured.count(key) % 3))
        return Measurement(
            seconds_per_minibatch=seconds,
            median_seconds=seconds,
            standard_deviation_seconds=0.0,
            minibatches=minibatches,
        )


CONTENDERS = [
    Contender(found_by="tuned", placement=HALVES, method=PIPELINE),
    Contender(found_by="tuned", placement=UNEVEN, method=PIPELINE),
    Contender(found_by="data-parallel", placement=WHOLE, method=SYNC),
    Contender(found_by="gpipe", placement=HALVES, method=SYNC),
    Contender(found_by="exact", placement=SAME_HALVES, method=PIPELINE),
]
SECONDS = {
    (HALVES, PIPELINE): 1.0,
    (UNEVEN, PIPELINE): 1.2,
    (WHOLE, SYNC): 2.0,
    (HALVES, SYNC): 3.0,
}


def compared(session: FakeSession, path: Path, rounds: int = 5) -> Comparison:
    return compare(
        session,  # type: ignore[arg-type]
        CONTENDERS,
        rules=RaceRules(rounds=rounds),
        minibatches=7,
        path=path,
    )


def shown(comparison: Comparison) -> str:
    console = Console(width=120, file=io.StringIO(), markup=False)
    console.print(describe(comparison))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_alike_contenders_are_measured_once_for_all(tmp_path: Path) -> None:
    session = FakeSession(SECONDS)
    comparison = compared(session, tmp_path / "comparison.json")
    keys = list(SECONDS)
    assert session.measured == [*keys, *keys[::-1], *keys, *keys[:2][::-1]]
    assert [len(c.measurements) for c in comparison.contenders] == [4, 4, 3, 3, 4]
    assert comparison.contenders[0].measurements == comparison.contenders[4].measurements
    fastest = comparison.fastest()
    assert fastest == comparison.contenders[0]
    text = shown(comparison)
    assert "fastest with over 99.9% confidence: 1.20× (1.20–1.20) over tuned (1-1)" in text


@pytest.mark.parametrize("dies_at", range(1, 14))
def test_an_interrupted_comparison_goes_on(tmp_path: Path, dies_at: int) -> None:
    path = tmp_path / "comparison.json"
    first = FakeSession(SECONDS, dies_at)
    with pytest.raises(KeyboardInterrupt):
        compared(first, path)
    second = FakeSession(SECONDS)
    second.measured = list(first.measured)
    whole = FakeSession(SECONDS)
    assert compared(second, path) == compared(whole, tmp_path / "whole.json")
    assert second.measured == whole.measured


def test_a_complete_comparison_is_not_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "comparison.json"
    before = compared(FakeSession(SECONDS), path)
    written = path.read_text()
    assert compared(FakeSession({}), path) == before
    assert path.read_text() == written


def test_what_fails_or_cannot_run_drops_out(tmp_path: Path) -> None:
    path = tmp_path / "comparison.json"
    session = FakeSession(SECONDS | {(HALVES, PIPELINE): 0.0, (HALVES, SYNC): -1.0})
    comparison = compared(session, path)
    fastest = comparison.fastest()
    assert fastest is not None
    assert fastest.placement == UNEVEN
    reasons = [contender.failure for contender in comparison.contenders]
    assert reasons[0] == reasons[4] == "worker 1 was killed"
    assert "exact: worker 1 was killed" in shown(comparison)
    assert "cannot be divided" in (reasons[3] or "")
    again = FakeSession({})
    assert compared(again, path) == comparison
    nothing = compared(FakeSession(dict.fromkeys(SECONDS, 0.0)), tmp_path / "nothing.json")
    assert nothing.fastest() is None
    assert "fastest with" not in shown(nothing)


def test_one_round_gives_no_confidence(tmp_path: Path) -> None:
    text = shown(compared(FakeSession(SECONDS), tmp_path / "comparison.json", rounds=1))
    assert "1.20× over tuned (1-1) in a single round" in text
