"""The study of expert iteration: its problems, its clock, its tables, and a generation."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.cells import Where
from benchmarks.expert_iteration.comparison import SECONDS, Arm, Cell, Run, run
from benchmarks.expert_iteration.iteration import Iteration, iterate
from benchmarks.expert_iteration.problems import HELD_OUT, held_out_problem, training_problem
from benchmarks.expert_iteration.report import best_known, gaps, table
from drlpp.agents.transfer.weights import PRETRAINED


def _run(problem: int, arm: Arm, found: float, seed: int = 0) -> Run:
    cell = Cell(problem=problem, arm=arm, seed=seed)
    return Run(cell=cell, planned=1.2, found=(found + 0.1, found, found)[: len(SECONDS)])


def test_problems_are_always_the_same_and_have_many_accelerators() -> None:
    sizes = {held_out_problem(number).cluster.accelerators for number in range(HELD_OUT)}
    assert sizes == {8, 16, 32, 64}
    one, again = held_out_problem(3), held_out_problem(3)
    assert one.cluster == again.cluster
    assert training_problem(5).cluster == training_problem(5).cluster
    counts = [training_problem(number).cluster.accelerators for number in range(12)]
    assert all(4 <= count <= 64 for count in counts)
    assert len(set(counts)) > 6


def test_gaps_are_of_problems_with_headroom_and_paired_with_the_search_alone() -> None:
    runs = [
        _run(0, Arm.NOTHING, 1.0),
        _run(0, Arm.NOTHING, 1.04, seed=1),
        _run(0, Arm.EXPERT, 1.01),
        _run(1, Arm.NOTHING, 1.19),
        _run(1, Arm.EXPERT, 1.19),
    ]
    assert best_known(runs) == {0: 1.0}
    assert gaps(runs, Arm.NOTHING, 1) == pytest.approx({0: 0.02})
    assert gaps(runs, Arm.EXPERT, 1) == pytest.approx({0: 0.01})
    alone, expert = table(runs).to_dict("records")
    assert alone["4 s: median / worst"] == "2.0 / 2.0"
    assert expert["4 s: median / worst"] == "1.0 / 1.0 (-1.00, p = 1)"


@pytest.mark.slow
@pytest.mark.parametrize("arm", list(Arm))
def test_what_is_found_is_no_slower_later_and_never_slower_than_the_plans(arm: Arm) -> None:
    found = run(Cell(problem=0, arm=arm, seed=0), PRETRAINED, seconds=(0.05, 0.3, 0.6))
    assert len(found.found) == 3
    assert found.found[0] >= found.found[1] >= found.found[2]
    assert found.found[2] <= found.planned


@pytest.mark.slow
def test_a_generation_imitates_what_the_search_found_and_is_not_made_again(tmp_path: Path) -> None:
    said: list[str] = []
    options = Iteration(pairs=2, generations=2, minutes=0.02, folder=tmp_path)
    weights = iterate(options, Where(1), said.append)
    assert weights == tmp_path / "policy-1.safetensors"
    assert weights.read_bytes() != PRETRAINED.read_bytes()
    before = (tmp_path / "pairs.jsonl").read_text()
    assert before.count("\n") == 4
    assert iterate(options, Where(1), said.append) == weights
    assert (tmp_path / "pairs.jsonl").read_text() == before
