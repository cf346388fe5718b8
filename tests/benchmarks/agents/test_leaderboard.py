"""The leaderboard: results come out again, false ones are found, and others can take part."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.leaderboard import __main__ as leaderboard
from benchmarks.leaderboard.agents import AGENTS, find_agent
from benchmarks.leaderboard.problems import PROBLEMS
from benchmarks.leaderboard.results import Result, check, run, table_of
from drlpp.cells import read_results_of
from drlpp.envs import CostPrior, MeasurementMemory
from drlpp.errors import InvalidInput
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement

SMALL = PROBLEMS[0]


def alone(memory: MeasurementMemory, declared: CostPrior, budget: int, seed: int) -> None:
    """An agent of somebody's own: the whole model on one accelerator, then on the next."""
    for accelerator in range(min(budget + 1, memory.accelerators)):
        idle = [1] * memory.accelerators
        idle[accelerator] = 0
        memory.measure(Placement.from_assignment([0] * len(memory.graph), idle))


def test_problems_have_names_of_their_own_and_agents_are_told_less() -> None:
    assert len({problem.name for problem in PROBLEMS}) == len(PROBLEMS)
    for problem in PROBLEMS:
        told = problem.declared.problem
        true = problem.measurer
        differs = set(problem.cluster.speeds) != {1.0} or problem.cost_error > 0
        assert (told.cluster.speeds != problem.cluster.speeds) == bool(problem.speeds)
        profiled = [cost.forward_seconds for cost in problem.profile.operators]
        assert (told.workload.forward_seconds.tolist() != profiled) == bool(problem.cost_error)
        assert differs == (not problem.name.endswith("known"))
        assert true.graph is problem.profile.graph


def test_an_own_agent_is_judged_by_what_it_may_measure() -> None:
    result = run(f"{__name__}:alone", SMALL, seed=3, budget=2)
    assert result.measured == 2
    assert result.best is not None
    assert result.best.seed == 3
    outcome = result.best.outcome
    assert isinstance(outcome, Measurement)
    work = sum(SMALL.profile.seconds)
    assert outcome.seconds_per_minibatch == pytest.approx(work, rel=0.05)
    assert result.ratio == outcome.seconds_per_minibatch / SMALL.reference_seconds > 2
    check(result)


def test_a_result_that_does_not_come_out_again_is_refused() -> None:
    result = run("exact", SMALL, seed=0, budget=1)
    assert result.best is not None
    assert isinstance(result.best.outcome, Measurement)
    faster = result.best.outcome.model_copy(update={"seconds_per_minibatch": 1e-9})
    false = result.model_copy(update={"best": result.best.model_copy(update={"outcome": faster})})
    with pytest.raises(InvalidInput, match="gives another measurement"):
        check(false)
    with pytest.raises(InvalidInput, match="the reference is"):
        check(result.model_copy(update={"reference_seconds": 1.0}))
    with pytest.raises(InvalidInput, match="no problem of this set"):
        check(result.model_copy(update={"version": 99}))


def test_results_are_kept_and_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.jsonl"
    arguments = {"problems": 1, "seeds": 1, "budget": 2, "results": path}
    leaderboard.main(agents=f"exact,{__name__}:alone", **arguments)
    known = read_results_of("leaderboard", Result, path)
    monkeypatch.setattr(leaderboard, "run", lambda *_: pytest.fail("ran again"))
    leaderboard.main(agents=f"exact,{__name__}:alone", **arguments)
    table = table_of(known)
    assert list(table["agent"]) == ["exact", f"{__name__}:alone"]
    assert table["within 1%"][1] == "0%"
    with pytest.raises(InvalidInput, match="is unknown; there are"):
        leaderboard.main(agents="nobody", **arguments)


def test_the_results_in_the_repository_are_of_this_set() -> None:
    results = read_results_of("leaderboard", Result, leaderboard.RESULTS)
    assert {result.agent for result in results} <= AGENTS.keys()
    names = {problem.name for problem in PROBLEMS}
    assert all(result.problem in names for result in results)
    for result in results[:3]:
        check(result)
    assert find_agent("random") is AGENTS["random"]
