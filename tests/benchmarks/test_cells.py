"""Cells of a study: each once, wherever they run, whatever is interrupted or killed."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks import cells
from benchmarks.cells import Where, run_cells
from drlpp.errors import InvalidInput, WorkerLost
from tests.support.programs.ray_clusters import RayCluster, ray_cluster
from tests.support.squares import (
    Number,
    Square,
    Stay,
    all_of,
    numbers,
    read_squares,
    read_stays,
    runs_of,
    square,
    stay,
)


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run cells in this process, which is faster to begin."""
    monkeypatch.setattr(cells, "ProcessPoolExecutor", lambda size, _: ThreadPoolExecutor(size))


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster((2, 1)) as cluster:
        yield cluster


def squared(wanted: list[Number], path: Path, where: Where) -> list[Square]:
    return run_cells(square, all_of(wanted, lambda found: found.cell), path, read_squares, where)


def lines(path: Path) -> list[str]:
    return sorted(path.read_text().splitlines())


@pytest.mark.usefixtures("in_threads")
def test_an_interrupted_study_continues(tmp_path: Path) -> None:
    path, wanted = tmp_path / "folder" / "results.jsonl", numbers(tmp_path)
    squared(wanted[4:5], path, Where())
    told: list[Square] = []

    def interrupt(result: Square) -> None:
        told.append(result)
        if len(told) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cells(square, all_of(wanted, lambda r: r.cell), path, read_squares, Where(1), interrupt)
    assert [result.square for result in read_squares(path)] == [16, 0, 1]
    # The next line was cut off.
    with path.open("a") as file:
        file.write(lines(path)[0][:20])
    found = squared(wanted, path, Where(2))
    assert sorted(result.square for result in found) == [0, 1, 4, 9, 16, 25]
    assert read_squares(path) == found
    assert [runs_of(cell) for cell in wanted[:2]] == [1, 1]
    assert squared(wanted, path, Where(2)) == found
    assert sum(map(runs_of, wanted)) == len(wanted)


@pytest.mark.usefixtures("in_threads")
def test_what_is_wanted_may_follow_from_what_was_found(tmp_path: Path) -> None:
    all_cells = numbers(tmp_path)
    found = run_cells(
        square,
        lambda results: all_cells[len(results) : len(results) + 1],
        tmp_path / "results.jsonl",
        read_squares,
        Where(3),
    )
    assert [result.cell for result in found] == all_cells


@pytest.mark.usefixtures("in_threads")
def test_a_cell_that_raises_ends_the_study(tmp_path: Path) -> None:
    broken = numbers(tmp_path / "nowhere", 1)
    with pytest.raises(FileNotFoundError):
        squared(broken, tmp_path / "results.jsonl", Where())


def test_cells_that_time_the_machine_run_one_by_one() -> None:
    with pytest.raises(InvalidInput, match="2 processes were asked for, and each would time"):
        Where(2, alone=True)


@pytest.mark.system
def test_a_killed_process_is_replaced_and_its_cell_run_again(tmp_path: Path) -> None:
    path, wanted = tmp_path / "results.jsonl", numbers(tmp_path, 4, dying=1)
    found = squared(wanted, path, Where(2))
    assert sorted(result.square for result in found) == [0, 1, 4, 9]
    assert runs_of(wanted[1]) == 2


@pytest.mark.system
def test_a_cell_whose_process_always_dies_ends_the_study(tmp_path: Path) -> None:
    (cell,) = numbers(tmp_path, 1)
    deadly = cell.model_copy(update={"deaths": 100})
    with pytest.raises(WorkerLost, match="was killed 4 times: memory may be short"):
        squared([deadly], tmp_path / "results.jsonl", Where())
    assert runs_of(deadly) == 4


@pytest.mark.system
@pytest.mark.timeout(300)
def test_tasks_of_a_cluster_write_the_same_file(tmp_path: Path, cluster: RayCluster) -> None:
    here, there = tmp_path / "here.jsonl", tmp_path / "there.jsonl"
    wanted = numbers(tmp_path, 6, dying=1)
    squared(wanted, there, Where(cluster=cluster.address))
    assert [runs_of(cell) for cell in wanted] == [1, 2, 1, 1, 1, 1]
    squared(wanted, here, Where(2))
    assert lines(there) == lines(here)


@pytest.mark.system
@pytest.mark.timeout(300)
def test_a_cell_that_times_the_machine_has_a_host_to_itself(
    tmp_path: Path, cluster: RayCluster
) -> None:
    found = run_cells(
        stay,
        all_of(numbers(tmp_path, 6), lambda result: result.cell),
        tmp_path / "results.jsonl",
        read_stays,
        Where(cluster=cluster.address, alone=True),
    )
    of_host: dict[str, list[Stay]] = {}
    for one in sorted(found, key=lambda result: result.begin):
        of_host.setdefault(one.host, []).append(one)
    assert len(of_host) == 2
    for stays in of_host.values():
        assert all(first.end <= second.begin for first, second in pairwise(stays))
