"""The table of methods as Markdown: differences, versions held, and resident memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pandas import DataFrame

from benchmarks.methods_table.differences import Cell
from benchmarks.methods_table.rows import METHODS, OPTIMIZERS, SHAPES
from benchmarks.report import markdown

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
    """Return all that stands between the marks.

    Args:
        cells: every method, optimizer and shape, with float32 weights.
        doubles: the largest cell of every method, and all above the goal, with float64 weights.
        memory: resident memory over weights with SGDM.
        generic_memory: of PipeOptim with an optimizer that has no rule.
    """
    parts = [_summary(cells, doubles), ""]
    for shape in SHAPES:
        parts += [f"### Differences: {shape}\n", markdown(_differences(cells, shape)), ""]
    parts += ["### The same in float64\n", markdown(_doubles(cells, doubles)), ""]
    parts += ["### Weight memory\n", markdown(_memory(cells, memory, generic_memory)), ""]
    return "\n".join(parts)


def worth_doubling(cells: Mapping[CellKey, Cell]) -> list[CellKey]:
    """Return cells to run in float64 too: the largest of every method, and all above the goal."""
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


def _differences(cells: Mapping[CellKey, Cell], shape: str) -> DataFrame:
    found = DataFrame(
        [[cells[method, name, shape].difference for name in OPTIMIZERS] for method in METHODS],
        index=METHODS,
        columns=OPTIMIZERS,
    )
    found["largest"] = found.max(axis=1)
    return found.map(_in_units).rename_axis("difference / 10⁻⁷").reset_index()


def _in_units(difference: float) -> str:
    text = f"{difference * 1e7:.1f}" if difference else "0"
    return f"**{text}**" if difference > GOAL else text


def _doubles(cells: Mapping[CellKey, Cell], doubles: Mapping[CellKey, Cell]) -> DataFrame:
    return DataFrame(
        [
            [*key, f"{cells[key].difference:.1e}", f"{c.difference:.1e}"]
            for key, c in doubles.items()
        ],
        columns=["method", "optimizer", "shape", "float32", "float64"],
    )


def _memory(
    cells: Mapping[CellKey, Cell],
    memory: Mapping[MemoryKey, float],
    generic_memory: Mapping[MemoryKey, float],
) -> DataFrame:
    shapes = sorted({shape for _, shape in memory}, key=list(SHAPES).index)

    def line(
        title: str, method: str, optimizers: Sequence[str], measured: Mapping[MemoryKey, float]
    ) -> dict[str, str]:
        def versions(shape: str) -> float:
            return max(cells[method, name, shape].versions for name in optimizers)

        return {
            "method": title,
            "papers": PAPERS_VERSIONS[method],
            **{f"held: {shape}": f"{versions(shape):g}" for shape in SHAPES},
            **{f"resident: {shape}": f"{measured[method, shape]:.2f}" for shape in shapes},
        }

    rows = []
    for method in METHODS:
        rows.append(line(method, method, list(OPTIMIZERS), memory))
        if (method, shapes[0]) in generic_memory:
            rows.append(line(f"{method}, with ASGD", method, ["ASGD"], generic_memory))
    return DataFrame(rows)
