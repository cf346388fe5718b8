"""Files of results that a study writes line by line and continues."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from drlpp.errors import InvalidFile
from drlpp.io.documents import Record, first_problem
from drlpp.io.json_lines import cut_off, read_lines

ResultType = TypeVar("ResultType", bound=Record)


def read_results_of(study: str, kind: type[ResultType], path: Path) -> list[ResultType]:
    """Return all results in ``path``, none if there is no such file.

    A last line that was cut off while it was written is removed from the file.

    Args:
        study: the module that wrote them.
        kind: of a line.
        path: of the file.

    Raises:
        InvalidFile: if a line is no result.
    """
    lines, rest = read_lines(path)
    cut_off(path, rest)
    results = []
    for number, line in enumerate(lines, start=1):
        try:
            results.append(kind.model_validate_json(line))
        except ValidationError as error:
            raise InvalidFile(
                f"{path}, line {number}: {first_problem(error)}; expected a result that {study} "
                "wrote"
            ) from None
    return results
