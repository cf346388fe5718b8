"""The table of methods: its rows, what it measures, and what it writes."""

import pytest
import torch

from benchmarks.methods_table.__main__ import differences
from benchmarks.methods_table.differences import Cell, largest_difference
from benchmarks.methods_table.memory import WIDE_SHAPES
from benchmarks.methods_table.report import GOAL, PAPERS_VERSIONS, report, worth_doubling
from benchmarks.methods_table.rows import METHODS, OPTIMIZERS, SHAPES
from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference


def test_every_tensor_counts_relative_to_its_largest_element() -> None:
    wanted = {"big": torch.tensor([100.0, 1.0]), "small": torch.tensor([0.01])}
    found = {"big": torch.tensor([100.0, 2.0]), "small": torch.tensor([0.0102])}
    assert largest_difference(found, wanted) == pytest.approx(0.02, rel=1e-3)
    assert largest_difference(wanted, wanted) == 0


def test_shapes_are_what_they_are_called() -> None:
    graph = capture(ModelReference.named("benchmarks.methods_table.models:forked")).graph
    for placement in SHAPES.values():
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "optimizer", "shape", "versions"),
    [
        ("PipeOptim", "SGDM", "straight", 2),
        ("PipeDream", "Lion", "branching", 3),
        ("PipeMare T1+T2+W", "AdamW", "2-1-1", 2),
    ],
)
def test_a_cell_differs_by_rounding_alone(
    method: str, optimizer: str, shape: str, versions: float
) -> None:
    key = (method, optimizer, shape)
    single, double = (differences([key], dtype)[key] for dtype in ("float32", "float64"))
    assert single.difference < GOAL
    assert double.difference < 1e-13
    assert single.versions == double.versions == versions


def test_the_report_fills_every_cell() -> None:
    keys = [(m, o, s) for m in METHODS for o in OPTIMIZERS for s in SHAPES]
    cells = {key: Cell(difference=1e-7, versions=1.0) for key in keys}
    cells["vanilla", "Adam", "2-1-1"] = Cell(difference=2e-6, versions=1.0)
    doubled = worth_doubling(cells)
    assert ("vanilla", "Adam", "2-1-1") in doubled
    assert {method for method, _, _ in doubled} == set(METHODS)
    memory = {(method, shape): 1.0 for method in METHODS for shape in WIDE_SHAPES}
    generic = {("PipeOptim", shape): 2.0 for shape in WIDE_SHAPES}
    doubles = {key: Cell(difference=1e-15, versions=1.0) for key in doubled}
    lines = report(cells, doubles, memory, generic).splitlines()
    tables = [line for line in lines if line.startswith("|")]
    assert sum("**20.0**" in line for line in tables) == 1
    assert all("1.0" in line for line in tables if line.startswith("| naive |"))
    assert sum(line.startswith("| PipeMare T2 |") for line in tables) == len(SHAPES) + 2
    assert PAPERS_VERSIONS.keys() == METHODS.keys()
