"""The table of weight policies: whoever asks it knows a policy that is added to it."""

from __future__ import annotations

import pytest

from drlpp.errors import InvalidInput
from drlpp.schedule.analysis.weight_versions import weight_uses
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.weight_policies import WEIGHT_POLICIES, Lookahead, PolicyFacts

MADE_UP = PolicyFacts(
    name="made-up",
    title="Made-up",
    version=lambda counts: max(counts.newest_in_forward - 1, 0),
    lookahead=Lookahead(forward=lambda c: 2 * c.difference, backward=lambda c: c.until_input),
    copies=3,
    writes_in_place=True,
)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WEIGHT_POLICIES, MADE_UP.name, MADE_UP)


@pytest.mark.usefixtures("made_up")
def test_a_method_may_have_a_new_policy() -> None:
    method = Method(policy="made-up")
    assert str(method) == "1f1b, made-up"
    assert choose_method("made-up", {}, Method(policy="stash", accumulate=2)) == Method(
        policy="made-up", accumulate=2
    )
    assert Method.model_validate_json(method.model_dump_json()) == method
    use = weight_uses(method.schedule_for(Pipeline.straight(1, 1, 1), 9), method)[0][5, 0]
    assert (use.stashed, use.forward_lead) == (use.newest_in_forward - 1, 4)
    for options, message in [
        ({"schedule": "gpipe"}, "made-up has no meaning on schedule gpipe"),
        ({"precision": "bfloat16", "recompute": False}, "recompute=false"),
        ({"correction_decay": 0.1}, "belong to policy pipemare, not to made-up"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            choose_method("made-up", options)
