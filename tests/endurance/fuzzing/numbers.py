"""Every number of every kind of document at its extremes, within bounds of memory and time.

Which fields hold numbers is read off the documents' models, so a new field is tried by itself. A
document may be refused in one readable line, or give a result. What is accepted is then used where
that is cheap: it is shown, planned on, or drawn as a timeline. A line is printed for everything
else, and the exit code is 1 if there is any.

    python -m tests.endurance.fuzzing numbers            # or only some kinds, such as placement
"""

from __future__ import annotations

import json
import resource
import signal
import tempfile
import types
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin
from unittest.mock import patch

import psutil
import typer
from pydantic import BaseModel
from rich.console import Console

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.cli.planning.plan_report import PlanReport
from drlpp.cli.showing.tables import describe, describe_measurements
from drlpp.cli.showing.timelines import from_schedule, time_use_table
from drlpp.costs.cost_table import read_profile
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput
from drlpp.io.documents import Document, read_any_document, read_document, write_document
from drlpp.models.model_reference import ModelReference
from drlpp.placement.placement_file import PlacementFile
from drlpp.planners import PlanningProblem, Space, best_plan
from drlpp.planners.search import Judge
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Cluster
from tests.endurance.fuzzing.documents import every_document, measurement_lines
from tests.endurance.fuzzing.loaders import check_line

MOST_SECONDS = 10
"""Of one document; an ordinary one takes a tenth, and the machine may be busy."""

MOST_MEMORY_BYTES = 3 * 2**30
"""Beyond what the program takes by itself."""

NUMBERS = frozenset({int, float})

EXTREMES = (
    "0",
    "-1",
    "1000000",
    "1000000000000",
    "9223372036854775808",
    "1" + "0" * 30,
    "1" + "0" * 400,
    "9" * 5000,
    "1e-320",
    "1e30",
    "1.7e308",
    "NaN",
    "Infinity",
    "-Infinity",
    "true",
)
"""As JSON writes them."""

Path_ = tuple[str | int, ...]
_MARK = "the value that is tried"
_HELD_ELSEWHERE = {"Contender.optimizer"}
"""What not every example has: a race to a loss has one optimizer, a comparison one for each."""


def fields_of(
    types_: Set[type],
    kind: type[BaseModel],
    content: dict[str, Any],
    within: Sequence[type] = (),
) -> Iterator[Path_]:
    """Yield where values of some types stand in a document's content; in a list, in the fullest.

    Args:
        types_: plain ones, such as ``{int, float}``.
        kind: of the document, whose model says what its fields hold.
        content: an example.
        within: the models that it is a part of.

    Raises:
        ValueError: the example lacks something that has further fields.
    """
    for name, field in kind.model_fields.items():
        value, where = content.get(name), f"{kind.__name__}.{name}"
        for path in _places(types_, field.annotation, value, where, (*within, kind)):
            yield name, *path


def _places(
    types_: Set[type], annotation: Any, value: Any, where: str, within: Sequence[type]
) -> Iterator[Path_]:
    annotation = _plain(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in types_:
        yield ()
    elif annotation is Any:
        yield from _places_in(types_, value)
    elif origin in {Union, types.UnionType}:
        alternatives = [_plain(one) for one in arguments]
        records = [one for one in alternatives if _is_record(one)]
        if types_ & set(alternatives):
            yield ()
        if records:
            yield from _places(types_, _of_value(records, value), value, where, within)
        for one in alternatives:
            if get_origin(one) in {list, tuple}:
                yield from _places(types_, one, value, where, within)
    elif origin in {tuple, list}:
        held_ones = value if isinstance(value, list) else []
        sizes = [len(one) if isinstance(one, dict) else 0 for one in held_ones]
        fullest = sizes.index(max(sizes)) if sizes else 0
        alike = origin is list or Ellipsis in arguments
        for index, inner in [(fullest, arguments[0])] if alike else enumerate(arguments):
            held = value[index] if isinstance(value, list) and index < len(value) else None
            yield from ((index, *path) for path in _places(types_, inner, held, where, within))
    elif origin is dict:
        for key, held in (value or {}).items():
            yield from ((key, *path) for path in _places(types_, arguments[1], held, where, within))
    elif _is_record(annotation):
        if not isinstance(value, dict):
            # What may hold itself has to end somewhere.
            if annotation in within or where in _HELD_ELSEWHERE:
                return
            raise ValueError(f"{where}: a document to try numbers in has to have it")
        yield from fields_of(types_, annotation, value, within)


def _places_in(types_: Set[type], value: Any) -> Iterator[Path_]:
    """Yield the same where the model takes anything."""
    if type(value) in types_:
        yield ()
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from ((key, *path) for path in _places_in(types_, inner))


def _plain(annotation: Any) -> Any:
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return annotation


def _is_record(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _of_value(records: list[type[BaseModel]], value: Any) -> type[BaseModel]:
    """Return the record, of several, that has the value's fields."""
    names = set(value) if isinstance(value, dict) else set()
    fitting = [one for one in records if names and names <= set(one.model_fields)]
    return (fitting or records)[0]


def with_value(content: dict[str, Any], path: Path_, value: str) -> str:
    """Return the document in JSON with another value in one place.

    Args:
        content: of the document.
        path: of the place.
        value: in JSON.
    """
    changed = json.loads(json.dumps(content))
    inner: Any = changed
    for part, following in zip(path, (*path[1:], None), strict=True):
        if isinstance(inner, list):
            assert isinstance(part, int)
            inner.extend([0] * (part + 1 - len(inner)))
        if following is None:
            inner[part] = _MARK
        else:
            wanted = list if isinstance(following, int) else dict
            held = inner.get(part) if isinstance(inner, dict) else inner[part]
            if not isinstance(held, wanted):
                inner[part] = wanted()
            inner = inner[part]
    return json.dumps(changed).replace(json.dumps(_MARK), value)


# What is done with a document


def shown(renderable: Any) -> None:
    """Print it nowhere."""
    Console(file=StringIO(), width=110, markup=False).print(renderable)


def _show(path: Path) -> None:
    shown(describe(read_any_document(path)))


@cache
def _captured(model: str) -> CapturedModel:
    return capture(ModelReference.model_validate_json(model), check=False)


def _placement(path: Path) -> None:
    _show(path)
    document = read_document(path, PlacementFile)
    with patch(
        "drlpp.cli.showing.timelines.capture",
        lambda one, check: _captured(one.model_dump_json()),
    ):
        recording = from_schedule(document, document.method, 8)
    shown(time_use_table(recording, "title"))


def _plan(profile: Path, cluster: Path) -> None:
    costs = read_profile(profile)
    given = PlanningProblem(Workload.of(costs, Method()), read_document(cluster, Cluster))
    space = Space(Method())
    for planner in ("data-parallel", "gpipe", "pipedream", "exact"):
        try:
            found = best_plan(given, space, planner)
            problem = Judge(given, space).problem_of(found.method)
            shown(PlanReport.of(found, problem, costs).text())
        except InvalidInput as error:
            check_line(error)


def uses(folder: Path) -> dict[str, Callable[[Path], None]]:
    """Return what is done with a document of each kind; other kinds are only shown."""
    documents = every_document()
    profile = write_document(folder / "of-plan.json", documents["profile"])
    cluster = write_document(folder / "of-plan.yaml", documents["cluster"])

    def of_profile(path: Path) -> None:
        _show(path)
        _plan(path, cluster)

    def of_cluster(path: Path) -> None:
        _show(path)
        _plan(profile, path)

    return {"placement": _placement, "profile": of_profile, "cluster": of_cluster}


def tried(fields: Iterable[Path_], one_of: int) -> Iterator[tuple[Path_, str]]:
    """Yield one in so many pairs of a field and a number, in turns; 1 gives all of them."""
    for at, field in enumerate(fields):
        for index, number in enumerate(EXTREMES):
            if (at + index) % one_of == 0:
                yield field, number


def complaints(kind: str, document: Document, folder: Path, one_of: int) -> Iterator[str]:
    """Yield what is wrong with how a kind of document takes its numbers, one in so many tried."""
    use = uses(folder).get(kind, _show)
    content = json.loads(document.model_dump_json(exclude_none=True))
    content = {"kind": kind, "version": document.current_version, **content}
    path = folder / "tried.json"
    for field, number in tried(fields_of(NUMBERS, type(document), content), one_of):
        path.write_text(with_value(content, field, number))
        yield from _tried(path, use, f"{kind} {field} {number[:20]}")


def complaints_of_measurements(folder: Path, one_of: int) -> Iterator[str]:
    """Yield the same for the lines of a file of measurements."""
    path = folder / "tried.jsonl"
    records = measurement_lines()
    lines = [record.model_dump(mode="json") for record in records]

    def show(path: Path) -> None:
        shown(describe_measurements(path))

    for index, record in enumerate(records):
        for field, number in tried(fields_of(NUMBERS, type(record), lines[index]), one_of):
            texts = [json.dumps(line) for line in lines]
            texts[index] = with_value(lines[index], field, number)
            path.write_text("".join(f"{text}\n" for text in texts))
            yield from _tried(path, show, f"measurements {field} {number[:20]}")


def _tried(path: Path, use: Callable[[Path], None], what: str) -> Iterator[str]:
    signal.alarm(MOST_SECONDS)
    try:
        use(path)
    except InvalidInput as error:
        try:
            check_line(error)
        except ValueError as wrong:
            yield f"{what}: {wrong}"
    # Whatever else is raised is what is looked for.
    except BaseException as error:
        yield f"{what}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    finally:
        signal.alarm(0)


class TooSlow(BaseException):
    """A document took longer than it may."""


def _too_slow(number: int, frame: object) -> None:
    raise TooSlow


def main(
    kinds: Annotated[
        list[str] | None, typer.Argument(help="Kinds of documents, such as placement; else all.")
    ] = None,
    one_of: Annotated[
        int, typer.Option(min=1, help="Try one in so many pairs of a field and a number, in turns.")
    ] = 1,
) -> None:
    """Try every number of documents at its extremes, and print the complaints."""
    documents = every_document()
    signal.signal(signal.SIGALRM, _too_slow)
    limit = psutil.Process().memory_info().vms + MOST_MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    complained = False
    with tempfile.TemporaryDirectory(prefix="drlpp-numbers-") as name:
        for kind in kinds or [*documents, "measurements"]:
            found = (
                complaints_of_measurements(Path(name), one_of)
                if kind == "measurements"
                else complaints(kind, documents[kind], Path(name), one_of)
            )
            for complaint in found:
                complained = True
                print(complaint, flush=True)
    raise typer.Exit(1 if complained else 0)
