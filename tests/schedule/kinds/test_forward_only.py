"""Evaluation."""

from __future__ import annotations

from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import build_schedule
from tests.support.action_text import parse_actions


def test_evaluation_has_forwards_only() -> None:
    schedule = build_schedule(Pipeline.straight(2, 1), 3, "forward")
    assert schedule.actions == {
        0: parse_actions("F0 sF0:0>1@2 F2 sF2:0>1@2"),
        1: parse_actions("F1 sF1:0>1@2"),
        2: parse_actions("rF0:0>1@0 F0 rF1:0>1@1 F1 rF2:0>1@0 F2"),
    }
