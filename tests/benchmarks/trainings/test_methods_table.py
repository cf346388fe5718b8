"""The table of methods: its rows, what it measures, what it keeps, and what it writes."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from benchmarks.methods_table import running
from benchmarks.methods_table.__main__ import README, app
from benchmarks.methods_table.differences import Cell, Precise, largest_difference, run_cell
from benchmarks.methods_table.memory import Resident, measure_resident, memory_keys
from benchmarks.methods_table.report import GOAL, marks, report, worth_doubling
from benchmarks.methods_table.results import differences_file, memory_file, read_cells
from benchmarks.methods_table.rows import FOLDED, METHODS, PARTS, SHAPES, CellKey
from benchmarks.methods_table.running import run_differences, wanted_of
from drlpp.capturing.capture import capture
from drlpp.cells import Where, runners
from drlpp.io.json_lines import append
from drlpp.models.model_reference import ModelReference
from drlpp.schedule.kinds.registry import training_kinds
from drlpp.schedule.weight_policies import WEIGHT_POLICIES


def cell(key: CellKey, difference: float, dtype: str = "float32", versions: float = 1.0) -> Cell:
    """Return what a run showed."""
    method, optimizer, shape = key
    return Cell(
        method=method,
        optimizer=optimizer,
        shape=shape,
        dtype=dtype,
        difference=difference,
        versions=versions,
    )


def fill(folder: Path, part: str) -> None:
    """Put a result everywhere that a part wants one."""
    folder.mkdir()
    for key in PARTS[part].keys:
        append(differences_file(folder), cell(key, 1e-7))
        append(differences_file(folder), cell(key, 1e-15, "float64"))
    for method, optimizer, shape in memory_keys(PARTS[part]):
        append(
            memory_file(folder),
            Resident(method=method, optimizer=optimizer, shape=shape, versions=2.0),
        )


def test_every_tensor_counts_relative_to_its_largest_element() -> None:
    wanted = {"big": torch.tensor([100.0, 1.0]), "small": torch.tensor([0.01])}
    found = {"big": torch.tensor([100.0, 2.0]), "small": torch.tensor([0.0102])}
    assert largest_difference(found, wanted) == pytest.approx(0.02, rel=1e-3)
    assert largest_difference(wanted, wanted) == 0


def test_shapes_are_what_they_are_called() -> None:
    graph = capture(ModelReference.named("benchmarks.methods_table.models:forked")).graph
    for placement in (*SHAPES.values(), *FOLDED.values()):
        placement.validate_for(graph, 4)
    straight = SHAPES["straight"].pipeline(graph)
    assert straight.depth == 4
    # The skip reaches over two stages.
    assert (0, 3) in {(edge.source, edge.target) for edge in straight.edges}
    assert SHAPES["2-1-1"].configuration == "2-1-1"
    branching = SHAPES["branching"].pipeline(graph)
    assert branching.depth == 3
    assert {(edge.source, edge.target) for edge in branching.edges} >= {(0, 1), (0, 2), (1, 3)}
    assert (1, 2) not in {(edge.source, edge.target) for edge in branching.edges}
    folded = {shape: placement.pipeline(graph) for shape, placement in FOLDED.items()}
    assert all(pipeline.is_folded for pipeline in folded.values())
    assert folded["straight"].depth == 8
    assert folded["branching"].depth == 3


def test_every_weight_policy_and_schedule_has_a_row() -> None:
    methods = [row.method for row in METHODS.values()]
    assert {method.policy for method in methods} == set(WEIGHT_POLICIES)
    assert {method.schedule for method in methods} == set(training_kinds())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "optimizer", "shape", "versions"),
    [
        ("PipeOptim", "SGDM", "straight", 2),
        ("PipeDream", "Lion", "branching", 3),
        ("PipeMare T1+T2+W", "AdamW", "2-1-1", 2),
        ("ZB-V", "Adam", "branching", 1),
        ("PipeDream, M = D", "SGDM", "straight", 2),
        ("PipeDream, momentum per stage", "NAG", "straight", 4),
    ],
)
def test_a_cell_differs_by_rounding_alone(
    method: str, optimizer: str, shape: str, versions: float
) -> None:
    key = method, optimizer, shape
    single, double = (run_cell(Precise(key, dtype)) for dtype in ("float32", "float64"))
    assert single.difference < GOAL
    assert double.difference < 1e-13
    assert single.versions == double.versions == versions


@pytest.mark.slow
def test_gpipe_holds_its_weights_once() -> None:
    found = measure_resident(("GPipe", "SGDM", "2-1-1"))
    assert found.versions == pytest.approx(1, abs=0.2)


def made_up(wanted: Precise) -> Cell:
    """One cell above the goal, the others below."""
    above = wanted == Precise(("naive", "Adam", "2-1-1"), "float32")
    return cell(wanted.key, 1e-5 if above else 1e-8, wanted.dtype)


def test_what_runs_in_float64_is_wanted_once_all_of_float32_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runners, "ProcessPoolExecutor", lambda size, _: ThreadPoolExecutor(size))
    monkeypatch.setattr(running, "run_cell", made_up)
    parts, told = [PARTS["first"], PARTS["optimizers"]], list[Cell]()
    run_differences(parts, tmp_path, Where(2), told.append)
    found = read_cells(differences_file(tmp_path))
    assert found == told
    assert [wanted_of(part, found) for part in parts] == [[], []]
    doubled = {one.key for one in found if one.dtype == "float64"}
    assert ("naive", "Adam", "2-1-1") in doubled
    assert len({key for key in doubled if key[0] == "naive"}) == 1
    assert len(found) == sum(len(part.keys) for part in parts) + len(doubled)
    # Of a part that lacks a cell only that is wanted.
    rest = [one for one in found if one.key != ("naive", "SGD", "straight")]
    assert wanted_of(parts[0], rest) == [Precise(("naive", "SGD", "straight"), "float32")]
    # Nothing is run again.
    run_differences(parts, tmp_path, Where(2), told.append)
    assert len(told) == len(found)


@pytest.mark.parametrize("name", PARTS)
def test_the_report_fills_every_cell(name: str) -> None:
    part = PARTS[name]
    cells = {key: cell(key, 1e-7) for key in part.keys}
    method, optimizer = next(iter(part.methods)), next(iter(part.optimizers))
    above = (method, optimizer, "2-1-1")
    cells[above] = cell(above, 2e-6)
    doubled = worth_doubling(cells)
    assert above in doubled
    assert {name for name, _, _ in doubled} == set(part.methods)
    doubles = {key: cell(key, 1e-15, "float64") for key in doubled}
    memory = dict.fromkeys(memory_keys(part), 3.25)
    lines = report(part, cells, doubles, memory).splitlines()
    tables = [line for line in lines if line.startswith("|")]
    assert sum("**20.0**" in line for line in tables) == 1
    for method, row in part.methods.items():
        of_method = [line for line in tables if line.startswith(f"| {method} |")]
        shapes = sum(row.placement(shape) is not None for shape in SHAPES)
        # A difference for each shape, versions, and what was run in float64.
        assert len(of_method) == shapes + 1 + sum(key[0] == method for key in doubled)
        measured = any(key[0] == method for key in memory)
        assert (of_method[-1].count("3.25") == 2) == measured


def test_a_part_is_written_beside_what_is_there(tmp_path: Path) -> None:
    document, folder = tmp_path / "page.md", tmp_path / "results"
    page = README.read_text(encoding="utf-8")
    document.write_text(page, encoding="utf-8")
    fill(folder, "later")
    arguments = ["report", "--results", str(folder), "--document", str(document)]
    said = CliRunner().invoke(app, arguments)
    assert said.exit_code == 0, said.output
    assert "first: " in said.output
    assert "the part stays as it is" in said.output
    written = document.read_text(encoding="utf-8")
    begin, end = marks("later")
    assert page.partition(begin)[0] == written.partition(begin)[0]
    assert page.partition(end)[2] == written.partition(end)[2]
    assert "| ZB-H1 | 1 | 1 | 1 | 1 | 2.00 | 2.00 |" in written


def test_a_part_is_not_written_without_a_cell_in_float64(tmp_path: Path) -> None:
    document, folder = tmp_path / "page.md", tmp_path / "results"
    document.write_text("\n".join(marks("optimizers")), encoding="utf-8")
    folder.mkdir()
    for key in PARTS["optimizers"].keys:
        append(differences_file(folder), cell(key, 1e-7))
    arguments = ["report", "--part", "optimizers", "--results", str(folder)]
    said = CliRunner().invoke(app, [*arguments, "--document", str(document)])
    assert f"{len(PARTS['optimizers'].methods)} results are missing" in said.output
    assert document.read_text(encoding="utf-8") == "\n".join(marks("optimizers"))
