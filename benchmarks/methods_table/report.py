"""The table of methods as Markdown: differences, versions held, and resident memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.methods_table.differences import Cell
from benchmarks.methods_table.rows import METHODS, OPTIMIZERS, SHAPES
from benchmarks.report import table

BEGIN = "<!-- methods table: begin -->"
END = "<!-- methods table: end -->"

GOAL = 1e-6
"""The largest difference that float32 arithmetic excuses."""

CellKey = tuple[str, str, str]
"""Method, optimizer, shape."""

MemoryKey = tuple[str, str]
"""Method, shape."""

PAPERS_VERSIONS = {
    "naive": "1",
    "GPipe": "1",
    "GPipe, recomputing": "1",
    "flushed 1F1B": "1",
    "data parallel": "1",
    "vanilla": "1",
    "PipeDream": "1 to D",
    "PipeDream, recomputing": "1 to D",
    "vertical sync": "–",
    "2BW": "2",
    "SpecTrain": "2",
    "XPipe": "2",
    "PipeOptim": "1 to 2",
    "PipeOptim, updates of 3": "1 to 2",
    "PipeOptim, recomputing": "1 to 2",
    "PipeMare T1": "1",
    "PipeMare T2": "1 + δ",
    "PipeMare T1+T2": "1 + δ",
    "PipeMare T1+T2+W": "1 + δ",
    "PipeMare T1+T2, recomputing": "1 + δ",
}
"""pipeoptim Table II and pipemare Table 1, §3.2; naive to vanilla need one by their definition."""


def report(
    cells: Mapping[CellKey, Cell],
    doubles: Mapping[CellKey, Cell],
    memory: Mapping[MemoryKey, float],
    generic_memory: Mapping[MemoryKey, float],
) -> str:
    """All that goes between the marks.

    Args:
        cells: every method, optimizer and shape, with float32 weights.
        doubles: the largest cell of every method, and all above the goal, with float64 weights.
        memory: resident memory over weights with SGDM.
        generic_memory: of PipeOptim with an optimizer that has no rule.
    """
    lines = [_summary(cells, doubles), ""]
    for shape in SHAPES:
        lines += [f"### Differences: {shape}\n", *_differences(cells, shape), ""]
    lines += ["### The same in float64\n", *_doubles(cells, doubles), ""]
    lines += ["### Weight memory\n", *_memory(cells, memory, generic_memory), ""]
    return "\n".join(lines)


def worth_doubling(cells: Mapping[CellKey, Cell]) -> list[CellKey]:
    """Which cells to run in float64 too: the largest of every method, and all above the goal."""
    largest = [
        max((key for key in cells if key[0] == method), key=lambda key: cells[key].difference)
        for method in METHODS
    ]
    above = [key for key, cell in cells.items() if cell.difference > GOAL]
    return list(dict.fromkeys([*largest, *above]))


def _summary(cells: Mapping[CellKey, Cell], doubles: Mapping[CellKey, Cell]) -> str:
    differences = [cell.difference for cell in cells.values()]
    above = sum(difference > GOAL for difference in differences)
    return (
        f"{len(cells)} cells, the largest difference {max(differences):.1e}; {above} above "
        f"{GOAL:.0e}, {sum(not difference for difference in differences)} without any. The largest "
        f"in float64: {max(cell.difference for cell in doubles.values()):.1e}."
    )


def _differences(cells: Mapping[CellKey, Cell], shape: str) -> list[str]:
    rows = []
    for method in METHODS:
        found = [cells[method, optimizer, shape].difference for optimizer in OPTIMIZERS]
        rows.append([method, *(_in_units(value) for value in [*found, max(found)])])
    return table(["difference / 10⁻⁷", *OPTIMIZERS, "largest"], rows)


def _in_units(difference: float) -> str:
    text = f"{difference * 1e7:.1f}" if difference else "0"
    return f"**{text}**" if difference > GOAL else text


def _doubles(cells: Mapping[CellKey, Cell], doubles: Mapping[CellKey, Cell]) -> list[str]:
    rows = [
        [*key, f"{cells[key].difference:.1e}", f"{cell.difference:.1e}"]
        for key, cell in doubles.items()
    ]
    return table(["method", "optimizer", "shape", "float32", "float64"], rows)


def _memory(
    cells: Mapping[CellKey, Cell],
    memory: Mapping[MemoryKey, float],
    generic_memory: Mapping[MemoryKey, float],
) -> list[str]:
    shapes = sorted({shape for _, shape in memory}, key=list(SHAPES).index)
    rows = []
    for method in METHODS:
        versions = [_versions(cells, method, list(OPTIMIZERS), shape) for shape in SHAPES]
        measured = [f"{memory[method, shape]:.2f}" for shape in shapes]
        rows.append([method, PAPERS_VERSIONS[method], *versions, *measured])
        if (method, shapes[0]) in generic_memory:
            versions = [_versions(cells, method, ["ASGD"], shape) for shape in SHAPES]
            measured = [f"{generic_memory[method, shape]:.2f}" for shape in shapes]
            rows.append([f"{method}, with ASGD", PAPERS_VERSIONS[method], *versions, *measured])
    headings = [
        "method",
        "papers",
        *(f"held: {shape}" for shape in SHAPES),
        *(f"resident: {shape}" for shape in shapes),
    ]
    return table(headings, rows)


def _versions(
    cells: Mapping[CellKey, Cell], method: str, optimizers: Sequence[str], shape: str
) -> str:
    return f"{max(cells[method, name, shape].versions for name in optimizers):g}"
