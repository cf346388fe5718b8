"""How fast accelerators can be emulated on the cores that there are."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from drlpp.errors import InvalidInput
from drlpp.runtime.device.emulation import MOST_LOAD, cores_for, fitting_speeds


@pytest.mark.parametrize(
    ("relative", "cores", "fitting"),
    [
        ((1, 1, 0.5, 0.5), 2, (0.6, 0.6, 0.3, 0.3)),
        ((2, 2, 1, 1), 1, (0.3, 0.3, 0.15, 0.15)),
        ((1, 0.5), 4, (0.9, 0.45)),
        ((1, 1, 1), 2, (0.45, 0.45, 0.45)),
    ],
)
def test_the_largest_speeds_that_the_cores_can_do(
    relative: tuple[float, ...], cores: int, fitting: tuple[float, ...]
) -> None:
    assert fitting_speeds(relative, range(cores)) == pytest.approx(fitting)


@example([1.0, 1.0, 0.814453125], 1)
@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=8), st.integers(1, 8))
def test_every_worker_has_a_core_and_its_share(relative: list[float], cores: int) -> None:
    speeds = fitting_speeds(relative, range(cores))
    assert None not in cores_for(speeds, [("here", range(cores))] * len(speeds))
    assert max(speeds) <= MOST_LOAD
    for speed, wanted in zip(speeds, relative, strict=True):
        assert speed / max(speeds) == pytest.approx(wanted / max(relative), rel=0.01)


def test_more_than_the_cores_can_do_is_refused() -> None:
    with pytest.raises(InvalidInput, match="1 cores cannot emulate 200 accelerators"):
        fitting_speeds([1.0] * 200, [0])
