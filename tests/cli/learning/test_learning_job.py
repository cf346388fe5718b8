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

PAPERS = ["drl-pp", "drl-pp-mended", "tuned"]


def job(agent: str, vary: str | None = None, most_staleness: int | None = None) -> Any:
    return SimpleNamespace(
        hyperparameters=AGENTS[agent],
        vary=None if vary is None else read_vary(vary),
        most_staleness=most_staleness,
    )


def chosen(asked: Any, method: Method | None = None) -> Space | None:
    usual = Space(method or Method(), asked.vary, asked.most_staleness, batch_size=8)
    return methods_of_the_agent(asked, usual)


@pytest.mark.parametrize("vary", [None, "none"])
@pytest.mark.parametrize("agent", PAPERS)
def test_the_papers_action_is_the_placement(agent: str, vary: str | None) -> None:
    assert chosen(job(agent, vary)) is None


def test_the_guided_agent_chooses_the_depth_unasked_and_folds() -> None:
    found = chosen(job("guided"))
    assert found is not None
    assert found.deepens
    flushing = Method(schedule="gpipe", policy="sync")
    schedules = job("guided", Vary.SCHEDULE), job("tuned", Vary.SCHEDULE)
    guided, papers = (chosen(asked, flushing) for asked in schedules)
    assert guided is not None
    assert papers is not None
    assert {m.schedule for m in guided.methods} - {m.schedule for m in papers.methods} == {"zb-v"}


@pytest.mark.parametrize("agent", [*PAPERS, "guided"])
def test_a_method_that_no_policy_can_draw_is_refused_before_a_profile(agent: str) -> None:
    session: Any = SimpleNamespace(method=Method(schedule="zb-v", policy="sync"))
    with pytest.raises(InvalidInput, match="gives every accelerator one stage, and schedule zb-v"):
        run_job(job(agent), session)
