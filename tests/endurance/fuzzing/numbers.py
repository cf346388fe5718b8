"""Every number of every kind of document at its extremes, within bounds of memory and time.

The examples have every field (`every_document` sees to it), so a new one is tried by itself. A
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
from collections.abc import Callable, Iterator, Set
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import psutil
import typer
from rich.console import Console

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.cli.planning.plan_report import PlanReport
from drlpp.cli.showing.tables import describe, describe_measurements
from drlpp.cli.showing.timelines import from_schedule
from drlpp.costs.cost_table import read_profile
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput
from drlpp.io.documents import read_any_document, read_document, write_document
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


def fields_of(types_: Set[type], content: Any) -> Iterator[Path_]:
    """Yield where values of some types stand in a document's content; of like ones in the fullest.

    Args:
        types_: plain ones, such as ``{int, float}``.
        content: of a document that has all that it may have.
    """
    if type(content) in types_:
        yield ()
    elif isinstance(content, dict | list):
        places = content.items() if isinstance(content, dict) else _unlike(content)
        for place, value in places:
            yield from ((place, *path) for path in fields_of(types_, value))


def _unlike(values: list[Any]) -> Iterator[tuple[int, Any]]:
    """Yield of every type of value the fullest one, and its place."""
    for kind in dict.fromkeys(map(type, values)):
        alike = [(place, value) for place, value in enumerate(values) if type(value) is kind]
        yield max(alike, key=lambda one: len(one[1]) if isinstance(one[1], dict | list) else 0)


def with_value(content: dict[str, Any], path: Path_, value: str) -> str:
    """Return the document in JSON with another value, in JSON too, in one place."""
    changed = inner = json.loads(json.dumps(content))
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = _MARK
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
    shown(recording.table("title"))


def _plan(profile: Path, cluster: Path) -> None:
    costs = read_profile(profile)
    given = PlanningProblem(Workload.of(costs, Method()), read_document(cluster, Cluster))
    space = Space(Method())
    for planner in ("data-parallel", "gpipe", "pipedream", "exact"):
        try:
            found = best_plan(given, space, planner)
            problem = Judge(given, space).problem_of(found.method)
            shown(PlanReport(found, problem, costs).text())
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


def complaints(kind: str, folder: Path, one_of: int) -> Iterator[str]:
    """Yield what is wrong with how a kind of document takes its numbers.

    Args:
        kind: of document, or ``measurements`` for the lines of a file of these.
        folder: for files.
        one_of: try one in so many pairs of a field and a number, in turns; 1 tries all of them.
    """
    if kind == "measurements":
        lines = [record.model_dump(mode="json") for record in measurement_lines()]
        use, path = _show_measurements, folder / "tried.jsonl"
    else:
        document = every_document()[kind]
        content = json.loads(document.model_dump_json(exclude_none=True))
        lines = [{"kind": kind, "version": document.current_version, **content}]
        use, path = uses(folder).get(kind, _show), folder / "tried.json"
    for place, line in enumerate(lines):
        for at, field in enumerate(fields_of(NUMBERS, line)):
            for number in EXTREMES[-at % one_of :: one_of]:
                texts = [json.dumps(one) for one in lines]
                texts[place] = with_value(line, field, number)
                path.write_text("".join(f"{text}\n" for text in texts))
                yield from _tried(path, use, f"{kind} {field} {number[:20]}")


def _show_measurements(path: Path) -> None:
    shown(describe_measurements(path))


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
    signal.signal(signal.SIGALRM, _too_slow)
    limit = psutil.Process().memory_info().vms + MOST_MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    complained = False
    with tempfile.TemporaryDirectory(prefix="drlpp-numbers-") as name:
        for kind in kinds or [*every_document(), "measurements"]:
            for complaint in complaints(kind, Path(name), one_of):
                complained = True
                print(complaint, flush=True)
    raise typer.Exit(1 if complained else 0)
