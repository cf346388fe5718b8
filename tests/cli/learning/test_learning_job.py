"""What an agent of ``drlpp learn`` may choose with the placement."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from drlpp.agents import AGENTS
from drlpp.cli.learning.learning_job import methods_of_the_agent, run_job
from drlpp.errors import InvalidInput
from drlpp.planners import Space, Vary, read_vary
from drlpp.schedule.method import Method

PAPERS = ["drl-pp", "drl-pp-mended"]


def job(agent: str, vary: str | None = None, most_staleness: int | None = None) -> Any:
    return SimpleNamespace(
        hyperparameters=AGENTS[agent],
        vary=None if vary is None else read_vary(vary),
        most_staleness=most_staleness,
    )


def chosen(asked: Any, method: Method | None = None) -> Space | None:
    usual = Space(method or Method(), asked.vary, asked.most_staleness, batch_size=8)
    return methods_of_the_agent(asked, usual)


@pytest.mark.parametrize("agent", PAPERS)
def test_the_papers_action_is_the_placement(agent: str) -> None:
    assert chosen(job(agent)) is None
    limited = chosen(job(agent, most_staleness=2))
    assert limited is not None
    assert (len(limited.methods), limited.most_staleness) == (1, 2)


def test_the_guided_agent_chooses_the_depth_unasked_and_folds() -> None:
    found = chosen(job("guided"))
    assert found is not None
    assert found.deepens
    flushing = Method(schedule="gpipe", policy="sync")
    schedules = chosen(job("guided", Vary.SCHEDULE), flushing)
    assert schedules is not None
    assert "zb-v" in {method.schedule for method in schedules.methods}


@pytest.mark.parametrize("agent", [*PAPERS, "guided"])
def test_a_method_that_no_policy_can_draw_is_refused_before_a_profile(agent: str) -> None:
    session: Any = SimpleNamespace(method=Method(schedule="zb-v", policy="sync"))
    with pytest.raises(InvalidInput, match="gives every accelerator one stage, and schedule zb-v"):
        run_job(job(agent), session)
