"""One object has every limit of waiting, and the documentation has the same."""

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from drlpp.errors import InvalidInput
from drlpp.runtime import TimeLimits
from drlpp.runtime.ipc.time_limits import time_limits_of

DOCUMENT = Path(__file__).parents[3] / "docs" / "hard-to-kill.md"


def _meanings() -> dict[str, str]:
    """What the class says of every field."""
    _, _, attributes = (TimeLimits.__doc__ or "").partition("Attributes:\n")
    attributes, _, _ = attributes.partition("\n\n")
    found = re.findall(r"^ {8}(\w+): (.+(?:\n {12}.+)*)", attributes, re.MULTILINE)
    return {name: " ".join(meaning.split()) for name, meaning in found}


def test_the_documents_table_is_made_of_the_fields() -> None:
    meanings = _meanings()
    rows = [
        f"| `{one.name}` | {'–' if one.default is None else f'{one.default:g}'} | "
        f"{meanings.pop(one.name)} |"
        for one in fields(TimeLimits)
    ]
    assert not meanings
    table = ["| field of `TimeLimits` | default, s | what is waited for |", "|---|---|---|", *rows]
    assert "\n".join(table) in DOCUMENT.read_text()


@pytest.mark.parametrize("field", [one.name for one in fields(TimeLimits)])
@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf"), "5"])
def test_what_is_no_time_is_refused(field: str, seconds: object) -> None:
    with pytest.raises(InvalidInput, match=f"^{field}: a time limit of {seconds} s"):
        TimeLimits(**{field: seconds})  # type: ignore[arg-type]


def test_only_the_limit_of_an_answer_may_follow_from_what_was_seen() -> None:
    assert TimeLimits(answer_seconds=None).answer_seconds is None
    with pytest.raises(InvalidInput, match=r"^link_seconds is None"):
        TimeLimits(link_seconds=None)  # type: ignore[arg-type]


def test_who_waits_for_another_waits_longer() -> None:
    """A host is given the time to report what it waited for itself."""
    with pytest.raises(InvalidInput, match="less than host_start_seconds, 50"):
        TimeLimits(host_start_seconds=50)
    with pytest.raises(InvalidInput, match="less than lease_seconds, 30"):
        TimeLimits(host_silence_seconds=30.0)


def test_a_session_has_its_own_limits_or_the_defaults() -> None:
    own = TimeLimits(link_seconds=7)
    assert time_limits_of() == TimeLimits()
    assert time_limits_of(own) == own
    assert time_limits_of(timeout_seconds=5) == TimeLimits(answer_seconds=5)
    assert time_limits_of(own, 5) == replace(own, answer_seconds=5)
