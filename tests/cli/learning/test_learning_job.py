"""What an agent of ``drlpp learn`` may choose with the placement."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drlpp.agents import AGENTS
from drlpp.cli.learning.learning_job import LearningJob, methods_of_the_agent
from drlpp.cli.settings import SearchSettings
from drlpp.errors import InvalidInput
from drlpp.planners import Space, Vary, read_vary
from drlpp.schedule.method import Method


def chosen(
    agent: str,
    vary: str | None = None,
    method: Method | None = None,
    most_staleness: int | None = None,
) -> Space | None:
    varied = None if vary is None else read_vary(vary)
    usual = Space(method or Method(), varied, most_staleness, batch_size=8)
    search = SearchSettings(vary=vary, max_staleness=most_staleness)
    return methods_of_the_agent(AGENTS[agent], search, usual)


def test_the_papers_action_is_the_placement() -> None:
    assert chosen("drl-pp") is None
    limited = chosen("drl-pp", most_staleness=2)
    assert limited is not None
    assert (len(limited.methods), limited.most_staleness) == (1, 2)


def test_the_guided_agent_chooses_the_depth_unasked_and_folds() -> None:
    found = chosen("guided")
    assert found is not None
    assert found.deepens
    flushing = Method(schedule="gpipe", policy="sync")
    schedules = chosen("guided", Vary.SCHEDULE, flushing)
    assert schedules is not None
    assert "zb-v" in {method.schedule for method in schedules.methods}


@pytest.mark.parametrize("agent", ["drl-pp", "guided"])
def test_a_method_that_no_policy_can_draw_is_refused_before_a_profile(agent: str) -> None:
    session: Any = SimpleNamespace(method=Method(schedule="zb-v", policy="sync"))
    given: Any = None
    with pytest.raises(InvalidInput, match="gives every accelerator one stage, and schedule zb-v"):
        LearningJob(session, Path(), agent, given, AGENTS[agent], None, None).run()
