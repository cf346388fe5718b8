"""The parts of the table of methods as Markdown: differences, versions held, resident memory."""

from __future__ import annotations

from collections.abc import Mapping

from pandas import DataFrame

from benchmarks.methods_table.differences import Cell
from benchmarks.methods_table.memory import MEASURED_WITH, WIDE_SHAPES, WITHOUT_RULE, memory_keys
from benchmarks.methods_table.rows import SHAPES, CellKey, Part
from benchmarks.report import markdown

GOAL = 1e-6
"""The largest difference that float32 arithmetic excuses."""


def marks(part: str) -> tuple[str, str]:
    """Return the lines between which a part stands."""
    return f"<!-- methods table, {part}: begin -->", f"<!-- methods table, {part}: end -->"


def report(
    part: Part,
    cells: Mapping[CellKey, Cell],
    doubles: Mapping[CellKey, Cell],
    memory: Mapping[CellKey, float],
) -> str:
    """Return all that stands between the marks of a part.

    Args:
        cells: all of the part, with float32 weights.
        doubles: those of :func:`worth_doubling`, with float64 weights.
        memory: resident memory over weights, for all of
            :func:`~benchmarks.methods_table.memory.memory_keys`.
    """
    lines = [_summary(cells, doubles), ""]
    for shape in SHAPES:
        lines += [f"#### Differences: {shape}\n", markdown(_differences(part, cells, shape)), ""]
    lines += ["#### The same in float64\n", markdown(_doubles(cells, doubles)), ""]
    lines += ["#### Weight memory\n", markdown(_memory(part, cells, memory)), ""]
    return "\n".join(lines)


def worth_doubling(cells: Mapping[CellKey, Cell]) -> list[CellKey]:
    """Return cells to run in float64 too: the largest of every method, and all above the goal."""
    largest = [
        max((key for key in cells if key[0] == method), key=lambda key: cells[key].difference)
        for method in dict.fromkeys(method for method, _, _ in cells)
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


def _differences(part: Part, cells: Mapping[CellKey, Cell], shape: str) -> DataFrame:
    rows = []
    for method, row in part.methods.items():
        if row.placement(shape):
            found = [cells[method, name, shape].difference for name in part.optimizers]
            texts = map(_in_units, [*found, max(found)])
            headings = ["difference / 10⁻⁷", *part.optimizers, "largest"]
            rows.append(dict(zip(headings, [method, *texts], strict=True)))
    return DataFrame(rows)


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
    part: Part, cells: Mapping[CellKey, Cell], memory: Mapping[CellKey, float]
) -> DataFrame:
    measured = memory_keys(part)
    shapes = list(WIDE_SHAPES) if measured else []

    def line(title: str, method: str, optimizer: str | None = None) -> dict[str, str]:
        row = part.methods[method]

        def held(shape: str) -> str:
            if not row.placement(shape):
                return "–"
            names = part.optimizers if optimizer is None else [optimizer]
            return f"{max(cells[method, name, shape].versions for name in names):g}"

        def resident(shape: str) -> str:
            key = method, optimizer or MEASURED_WITH, shape
            return f"{memory[key]:.2f}" if key in measured else "–"

        return {
            "method": title,
            "papers": row.versions,
            **{f"held: {shape}": held(shape) for shape in SHAPES},
            **{f"resident: {shape}": resident(shape) for shape in shapes},
        }

    rows = []
    for method in part.methods:
        rows.append(line(method, method))
        if measured and method == WITHOUT_RULE[0]:
            rows.append(line(f"{method}, with {WITHOUT_RULE[1]}", *WITHOUT_RULE))
    return DataFrame(rows)
