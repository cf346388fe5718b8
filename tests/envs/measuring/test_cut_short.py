"""What is far slower than the fastest is not run again, and counts as measured in part."""

from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drlpp.envs import MeasurementMemory
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import Measurement, Outcome
from drlpp.placement.placement import Placement
from tests.support.planning.fake_measurer import FakeMeasurer, chain, of

WHOLE = Placement.from_assignment([0] * 6, [0] * 4)
CUTS = [
    Placement.from_assignment([0] * cut + [1] * (6 - cut), [0] * first + [1] * (4 - first))
    for cut, first in product(range(1, 6), range(1, 4))
]
FAST, SLOW, SLOWER = WHOLE, *CUTS[:2]


class InOrder(FakeMeasurer):
    """Gives the runs of a placement its seconds in order."""

    def __init__(self, seconds: dict[Placement, list[float]]) -> None:
        super().__init__(chain(6))
        self.runs = {placement: list(values) for placement, values in seconds.items()}

    def measure(self, plan: ExecutionPlan, minibatches: int = 30) -> Outcome:
        outcome = super().measure(plan, minibatches)
        seconds = self.runs[plan.placement].pop(0)
        return outcome.model_copy(update={"seconds_per_minibatch": seconds})


SECONDS = {FAST: [1.0, 1.1, 0.9], SLOW: [1.4, 1.6, 1.6], SLOWER: [2.0, 2.0, 2.0]}


def measured(
    measurer: InOrder, path: Path | None = None, limit: float | None = 1.5
) -> MeasurementMemory:
    memory = MeasurementMemory(measurer, path=path, repetitions=3)
    memory.limit_seconds = limit
    memory.measure_together(SECONDS)
    return memory


def test_runs_end_where_all_so_far_were_slower_than_the_limit() -> None:
    measurer = InOrder(SECONDS)
    memory = measured(measurer)
    assert [measurer.measured.count(p) for p in SECONDS] == [3, 3, 1]
    outcome = memory.outcomes[of(SLOWER)]
    assert isinstance(outcome, Measurement)
    assert outcome.cut_short
    assert outcome.seconds_per_minibatch == 2.0
    others = [memory.outcomes[of(placement)] for placement in (FAST, SLOW)]
    assert not any(isinstance(one, Measurement) and one.cut_short for one in others)
    # Asked for again, it is remembered.
    memory.limit_seconds = None
    assert memory.measure(SLOWER) is outcome
    assert len(measurer.measured) == 7


@pytest.mark.parametrize("dies_after", [0, 3, 7])
def test_a_file_goes_on_with_what_was_cut_short(tmp_path: Path, dies_after: int) -> None:
    path = tmp_path / "measurements.jsonl"
    whole = measured(InOrder(SECONDS), path)
    lines = path.read_text().splitlines(keepends=True)
    assert len(lines) == 1 + 7
    path.write_text("".join(lines[: 1 + dies_after]))
    left = {placement: list(values) for placement, values in SECONDS.items()}
    for placement in [FAST, SLOW, SLOWER, SLOW, FAST, FAST, SLOW][:dies_after]:
        left[placement].pop(0)
    again = measured(InOrder(left), path)
    assert dict(again.outcomes) == dict(whole.outcomes)
    assert path.read_text().splitlines(keepends=True) == lines


@given(st.data())
def test_the_fastest_is_never_cut_short_by_noise_of_a_fifth(data: st.DataObject) -> None:
    noise = st.lists(st.floats(0.82, 1.2), min_size=3, max_size=3)
    seconds = {}
    for placement in CUTS[:6]:
        usual = data.draw(st.sampled_from([1.0, 1.1, 1.5, 3.0]))
        seconds[placement] = [usual * factor for factor in data.draw(noise)]
    in_full = MeasurementMemory(InOrder(seconds), repetitions=3)
    limited = MeasurementMemory(InOrder(seconds), repetitions=3)
    for placement in seconds:
        in_full.measure(placement)
        # As the guided agent has it.
        if (best := limited.best()) is not None:
            limited.limit_seconds = 1.5 * best[1].seconds_per_minibatch
        limited.measure(placement)
    assert limited.best() == in_full.best()
