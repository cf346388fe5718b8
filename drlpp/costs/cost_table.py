"""A profile from a file, or from a table of somebody's own costs: a row for every operator.

As CSV, or as rows of plain data with the same names::

    name,forward_ms,backward_ms,output_bytes,parameter_bytes,count
    embedding,0.4,0.9,4194304,206045184,1
    layer,2.1,4.3,4194304,28351488,12
    head,3.0,6.1,4,0,1

Times are milliseconds of a minibatch. A row reads what the row before gives, unless ``reads`` names
others (separated by ``;``), or ``-`` for the model's inputs alone.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError, field_validator

from drlpp.capturing.graph import Edge, Operator, OpGraph, TensorSpec
from drlpp.costs.profile import OperatorProfile, Profile
from drlpp.errors import InvalidFile, InvalidInput, did_you_mean
from drlpp.io.documents import (
    StrictRecord,
    first_problem,
    problem_of_text,
    read_document,
    read_text,
)
from drlpp.io.quantities import Count

_NO_OPERATOR = "-"

_Milliseconds = Annotated[float, Field(ge=0, le=1e12)]
"""As much as a time in seconds may be."""


class CostRow(StrictRecord):
    """What an operator, a layer or a module costs for one minibatch.

    Attributes:
        name: unique; of several equal ones that follow each other, ``name.0``, ``name.1``, …
        forward_ms, backward_ms: of each.
        output_bytes: of the tensor that it gives, and of its gradient.
        parameter_bytes: of its weights.
        kept_bytes: kept from the forward to the backward; as large as the output if left out.
        reads: the rows whose output it reads; the row before if left out.
        count: how many there are, each reading the one before.
    """

    name: str = Field(min_length=1)
    forward_ms: _Milliseconds
    backward_ms: _Milliseconds
    output_bytes: Count = 0
    parameter_bytes: Count = 0
    kept_bytes: Count | None = None
    reads: tuple[str, ...] | None = None
    count: int = Field(default=1, ge=1, le=100_000)

    @field_validator("reads", mode="before")
    @classmethod
    def _names_in_a_text(cls, value: object) -> object:
        if isinstance(value, str):
            return () if value == _NO_OPERATOR else tuple(name.strip() for name in value.split(";"))
        return value


def profile_of_table(rows: Iterable[Mapping[str, object]], model: str = "table") -> Profile:
    """Return the profile of a table, an operator for each row and each of its ``count``.

    Args:
        rows: :class:`CostRow`'s fields, in an order in which each reads earlier ones.
        model: a name for it.

    Raises:
        InvalidInput: naming the row, what is wrong in it and what is expected.
    """
    operators: list[Operator] = []
    costs: list[OperatorProfile] = []
    edges: list[Edge] = []
    last_of: dict[str, int] = {}
    for number, values in enumerate(rows, 1):
        try:
            row = CostRow.model_validate(values)
        except ValidationError as error:
            raise InvalidInput(f"row {number}: {first_problem(error)}") from None
        names = [row.name]
        if row.count > 1:
            names = [f"{row.name}.{index}" for index in range(row.count)]
        for name in (row.name, *names):
            if name in last_of:
                raise InvalidInput(f"row {number}: a second {name!r}; expected another name for it")
        read = _sources(row, number, last_of, len(operators))
        for name in names:
            id_ = len(operators)
            output = TensorSpec(
                shape=(row.output_bytes // 4,), dtype="float32", bytes_=row.output_bytes
            )
            operators.append(
                Operator(
                    id=id_,
                    name=name,
                    type="row",
                    module=name,
                    parameter_bytes=row.parameter_bytes,
                    outputs=(output,),
                )
            )
            kept = row.output_bytes if row.kept_bytes is None else row.kept_bytes
            costs.append(
                OperatorProfile(
                    forward_seconds=row.forward_ms * 1e-3,
                    backward_seconds=row.backward_ms * 1e-3,
                    kept_bytes=kept,
                )
            )
            edges += [Edge(source=source, target=id_, outputs=(0,)) for source in read]
            read = (id_,)
            last_of[name] = id_
        last_of[row.name] = len(operators) - 1
    if not operators:
        raise InvalidInput("the table of costs has no rows; expected one for each operator")
    sources = {edge.source for edge in edges}
    graph = OpGraph(
        model=model,
        operators=tuple(operators),
        edges=tuple(sorted(edges, key=lambda edge: (edge.source, edge.target))),
        outputs=tuple((id_, 0) for id_ in range(len(operators)) if id_ not in sources),
    )
    return Profile(graph=graph, device="table", batch_size=1, operators=tuple(costs))


def _sources(row: CostRow, number: int, last_of: Mapping[str, int], known: int) -> tuple[int, ...]:
    """Return the operators that the first of a row reads."""
    if row.reads is None:
        return (known - 1,) if known else ()
    for name in row.reads:
        if name not in last_of:
            raise InvalidInput(
                f"row {number}: {row.name} reads {name!r}, which no row before it is; list rows in "
                "the order in which they compute"
            )
    return tuple(sorted({last_of[name] for name in row.reads}))


def read_cost_table(path: str | Path) -> Profile:
    """Read a table of costs as CSV, whose first line names the columns.

    Raises:
        InvalidFile: naming the file and the row, and what is expected there.
    """
    path = Path(path)
    text = read_text(path)
    for number, line in enumerate(text.splitlines(), 1):
        if problem := problem_of_text(line):
            raise InvalidFile(f"{path}: line {number}: {problem}")
    table = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    try:
        columns, lines = table.fieldnames or (), list(table)
    except csv.Error as error:
        raise InvalidFile(f"{path}: line {table.line_num}: {error}") from None
    if problem := _problem_of_columns(columns):
        raise InvalidFile(f"{path}: {problem}")
    rows = []
    for number, values in enumerate(lines, 1):
        if None in values:
            raise InvalidFile(f"{path}: row {number}: has more values than there are columns")
        if None in values.values():
            raise InvalidFile(f"{path}: row {number}: has fewer values than there are columns")
        # An empty cell is one that is left out.
        rows.append({name: value for name, value in values.items() if value != ""})
    try:
        return profile_of_table(rows, model=path.stem)
    except InvalidInput as error:
        raise InvalidFile(f"{path}: {error}") from None


def read_profile(path: Path) -> Profile:
    """Read a profile of this project, or a table of costs (``.csv``).

    Raises:
        InvalidFile: naming the file and what is wrong in it.
    """
    if path.suffix == ".csv":
        return read_cost_table(path)
    return read_document(path, Profile)


def _problem_of_columns(columns: Sequence[str]) -> str | None:
    known = list(CostRow.model_fields)
    if len(columns) == 1 and any(separator in columns[0] for separator in ";\t"):
        return "expected columns that are separated by commas"
    for number, column in enumerate(columns, 1):
        if not column:
            return f"column {number} has no name"
        if column not in known:
            near = did_you_mean(column, known) or f"there are {', '.join(known)}"
            return f"column {column!r} is unknown; {near}"
    return None
