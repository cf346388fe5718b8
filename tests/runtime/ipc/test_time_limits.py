"""One object has every limit of waiting."""

from dataclasses import fields, replace
from typing import Any

import pytest

from drlpp.errors import InvalidInput
from drlpp.runtime import TimeLimits
from drlpp.runtime.ipc.time_limits import time_limits_of


@pytest.mark.parametrize("field", [one.name for one in fields(TimeLimits)])
def test_what_is_no_time_is_refused(field: str) -> None:
    refused: list[Any] = [0, -1.0, float("nan"), float("inf"), "5"]
    for seconds in [*refused, *([None] if field != "answer_seconds" else [])]:
        with pytest.raises(InvalidInput, match=f"^{field}"):
            TimeLimits(**{field: seconds})


def test_a_session_has_its_own_limits_or_the_defaults() -> None:
    own = TimeLimits(fork_seconds=7)
    assert time_limits_of() == TimeLimits()
    assert time_limits_of(own, 5) == replace(own, answer_seconds=5)
    with pytest.raises(InvalidInput, match="less than lease_seconds, 30"):
        TimeLimits(host_silence_seconds=30.0)
