"""The zero-shot benchmark compares with the optimum, and its table has every group."""

from pathlib import Path
from random import Random

import pytest

from benchmarks.report import markdown
from benchmarks.zero_shot.__main__ import Row, gaps, made_up_problems, table_of, zoo_problems
from drlpp.agents.pretraining.problems import draw_problem
from drlpp.agents.transfer.transfer_policy import TransferNetwork
from drlpp.costs.synthetic_profiles import generate
from drlpp.errors import InvalidInput
from drlpp.io.documents import write_document


def test_gaps_are_at_least_0_and_fall_with_samples() -> None:
    row = gaps(TransferNetwork(), "made up", draw_problem("blocks", 9, 3, Random(0)))
    assert row.group == "made up"
    assert row.model == "blocks-9-" + row.model.rpartition("-")[2]
    one, some, many = row.samples.values()
    assert row.greedy >= -1e-9
    assert one >= some >= many >= -1e-9


def test_every_group_is_drawn_the_same_way_again() -> None:
    once = [(title, p.workload.model) for title, p in made_up_problems(1, seed=0)]
    again = [(title, p.workload.model) for title, p in made_up_problems(1, seed=0)]
    assert once == again
    assert len({title for title, _ in once}) == len(once)


def test_profiles_of_a_folder_are_placed_on_several_clusters(tmp_path: Path) -> None:
    write_document(tmp_path / "model.json", generate("blocks", 9, 0))
    found = list(zoo_problems(tmp_path))
    assert {problem.cluster.accelerators for _, problem in found} == {4, 8}
    assert any(min(p.cluster.speeds) < max(p.cluster.speeds) for _, p in found)
    with pytest.raises(InvalidInput, match="expected a folder with profiles"):
        list(zoo_problems(tmp_path / "nothing"))


def test_the_table_tells_problems_of_several_stages_apart() -> None:
    rows = [
        Row("g", "m", 4, stages, 0, greedy, {1: 3.0, 16: 2.0, 64: 1.0}, 0.5)
        for stages, greedy in ((1, 0.0), (2, 10.0), (3, 20.0))
    ]
    lines = markdown(table_of(rows)).splitlines()
    assert "| g (3) | median | 10.0 | 3.0 | 2.0 | 1.0 | 0.5 |" in lines
    assert "| … of several stages (2) | median | 15.0 | 3.0 | 2.0 | 1.0 | 0.5 |" in lines
