"""Problems solved ahead are those that were drawn, each solved once, and come first."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from drlpp.agents.pretraining import solving_ahead
from drlpp.agents.pretraining.problems import SolvedProblem
from drlpp.agents.pretraining.solving_ahead import Number, Solution, solution, solve_ahead
from drlpp.planners import PLANNERS

SEED = 3


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Solve in this process, which is faster to begin."""
    monkeypatch.setattr(
        solving_ahead, "ProcessPoolExecutor", lambda size, _: ThreadPoolExecutor(size)
    )


@pytest.fixture
def told() -> list[Solution]:
    return []


def seconds_of(solved: SolvedProblem) -> tuple[str, int, float, float]:
    return (
        solved.family,
        len(solved.context),
        solved.optimum_seconds,
        solved.imitated_seconds,
    )


@pytest.mark.usefixtures("in_threads")
def test_a_problem_is_made_again_from_its_line(tmp_path: Path, told: list[Solution]) -> None:
    path = tmp_path / "runs" / "problems.jsonl"
    ahead = list(solve_ahead(SEED, 4, path, 2, told.append))
    for solved in ahead:
        assert solved.imitated.accelerators == tuple(range(solved.context.accelerators))
        if len(set(solved.problem.cluster.speeds)) == 1:
            optimum = solved.objective(PLANNERS["exact"](solved.problem).placement)
            assert optimum == pytest.approx(solved.optimum_seconds)
            assert solved.imitated_seconds >= solved.optimum_seconds * (1 - 1e-9)
    # More of them are the same and others; those of another seed are others.
    more = list(solve_ahead(SEED, 5, path, 1, told.append))
    assert list(map(seconds_of, more[:4])) == list(map(seconds_of, ahead))
    assert len(set(map(seconds_of, more))) == 5
    (other,) = solve_ahead(SEED + 1, 1, path, 1, told.append)
    assert seconds_of(other) not in set(map(seconds_of, more))
    assert sorted(one.cell for one in told) == [(3, 0), (3, 1), (3, 2), (3, 3), (3, 4), (4, 0)]


def test_solving_does_not_depend_on_when(monkeypatch: pytest.MonkeyPatch) -> None:
    found = solution(Number(SEED, 1))
    assert Solution.model_validate_json(found.model_dump_json()) == found
    monkeypatch.setattr(solving_ahead, "count", lambda: iter([found.attempt]))
    assert solution(Number(SEED, 1)) == found
