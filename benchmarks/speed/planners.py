"""How long planning takes: the zoo at operator level, and up to 1,024 accelerators.

    python -m benchmarks.speed planners --document benchmarks/speed/README.md

The zoo's graphs are those of the small sizes, which have the operators of the published ones. Their
costs are made up from sizes (every byte that an operator reads or writes takes its time), since
what is timed here is the planner.
"""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Annotated

import typer
from pandas import DataFrame
from rich.filesize import decimal

from benchmarks.options import DocumentOption, JsonOption
from benchmarks.report import markdown, terminal, write_between
from drlpp.capturing.capture import capture
from drlpp.cli.command_line import build_console
from drlpp.costs.profiles.estimated_profile import estimate_profile
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput
from drlpp.io.formatting import seconds_text
from drlpp.models.model_reference import ModelReference
from drlpp.models.zoo import ZOO
from drlpp.planners import PLANNERS, PlanningProblem, tractability
from drlpp.simulator import simulate
from drlpp.specs.cluster import Cluster, Host, Link

BEGIN = "<!-- speed: written by benchmarks.speed -->"
END = "<!-- end of speed -->"

SIZES = (4, 16, 64, 256, 1024)
SCALE_MODELS = ("vgg16", "gnmt8")

_SPEEDS = 8 * [1.0] + 4 * [0.6] + 4 * [0.3]
"""Of accelerators of three kinds."""


@dataclass(frozen=True)
class ModelRow:
    """Planning a model for 16 accelerators; seconds of the planners, None where one refuses.

    ``unequal`` is of the exact planner where a half, a quarter and a quarter are of one speed.
    """

    model: str
    operators: int
    contracted: int
    downsets: int | None
    exact_seconds: float
    proven: bool
    unequal_seconds: float
    unequal_proven: bool
    pipedream_seconds: float | None
    pipedream_graph_seconds: float | None
    code_seconds: float | None


@dataclass(frozen=True)
class ScaleRow:
    """Planning a model for many accelerators, and playing the plan.

    ``peak_bytes`` are those of Python's and numpy's memory while the exact planner runs.
    """

    model: str
    accelerators: int
    configuration: str
    exact_seconds: float
    peak_bytes: int
    pipedream_seconds: float
    simulation_seconds: float


def main(
    models: Annotated[str, typer.Option(help="Names in the zoo.")] = ",".join(ZOO),
    sizes: Annotated[str, typer.Option(help="Numbers of accelerators.")] = ",".join(
        map(str, SIZES)
    ),
    document: DocumentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time the planners."""
    console = build_console()
    rows = []
    for model in models.split(","):
        with console.status(model):
            rows.append(plan_model(model))
    scale = [
        plan_at_scale(model, workload, int(size))
        for model in SCALE_MODELS
        if model in models.split(",")
        for workload in [workload_of(model)]
        for size in sizes.split(",")
        if size
    ]
    tables = [table for table in (models_table(rows), scale_table(scale)) if len(table)]
    if as_json:
        print(
            json.dumps({"models": [asdict(r) for r in rows], "scale": [asdict(r) for r in scale]})
        )
    else:
        console.print(*map(terminal, tables))
    if document is not None:
        write_between(document, BEGIN, END, "\n\n".join(map(markdown, tables)))


def plan_model(model: str) -> ModelRow:
    """Time planners on 16 accelerators of one host."""
    workload = workload_of(model)
    found = tractability(workload)
    problem = PlanningProblem(workload, _cluster(hosts=1, accelerators=16))
    exact_seconds, proven = _exactly(problem)
    unequal = replace(problem, cluster=problem.cluster.with_speeds(_SPEEDS))
    unequal_seconds, unequal_proven = _exactly(unequal)
    return ModelRow(
        model=model,
        operators=found.operators,
        contracted=found.contracted,
        downsets=found.downsets,
        exact_seconds=exact_seconds,
        proven=proven,
        unequal_seconds=unequal_seconds,
        unequal_proven=unequal_proven,
        pipedream_seconds=_seconds("pipedream", problem),
        pipedream_graph_seconds=_seconds("pipedream-graph", problem),
        code_seconds=_seconds("pipedream-code", problem),
    )


def plan_at_scale(model: str, workload: Workload, accelerators: int) -> ScaleRow:
    """Time planning for hosts of eight accelerators, and playing what was planned."""
    hosts = max(1, accelerators // 8)
    problem = PlanningProblem(workload, _cluster(hosts, accelerators // hosts))
    begin = time.perf_counter()
    solution = PLANNERS["exact"](problem)
    exact_seconds = time.perf_counter() - begin
    tracemalloc.start()
    PLANNERS["exact"](problem)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    begin = time.perf_counter()
    simulate(workload, problem.cluster, solution.placement, minibatches=8)
    simulation_seconds = time.perf_counter() - begin
    pipedream_seconds = _seconds("pipedream", problem)
    assert pipedream_seconds is not None
    return ScaleRow(
        model=model,
        accelerators=accelerators,
        configuration=solution.placement.configuration,
        exact_seconds=exact_seconds,
        peak_bytes=peak_bytes,
        pipedream_seconds=pipedream_seconds,
        simulation_seconds=simulation_seconds,
    )


def workload_of(model: str) -> Workload:
    """Return the operators of a model of the zoo, with made-up costs."""
    return Workload.of(estimate_profile(capture(ModelReference.named(model)).graph))


def _cluster(hosts: int, accelerators: int) -> Cluster:
    return Cluster(
        hosts=(Host(name="host", count=hosts, accelerators=accelerators, device="cuda"),),
        within_host=Link(bandwidth_bytes_per_second=1.2e10),
        between_hosts=Link(bandwidth_bytes_per_second=1.25e9),
    )


def _exactly(problem: PlanningProblem) -> tuple[float, bool]:
    """Return the exact planner's seconds, and whether its plan is proven."""
    begin = time.perf_counter()
    solution = PLANNERS["exact"](problem)
    return time.perf_counter() - begin, solution.proven_optimal


def _seconds(planner: str, problem: PlanningProblem) -> float | None:
    begin = time.perf_counter()
    try:
        PLANNERS[planner](problem)
    except InvalidInput:
        return None
    return time.perf_counter() - begin


def models_table(rows: Iterable[ModelRow]) -> DataFrame:
    """Return the rows as text."""

    def seconds(value: float | None) -> str:
        return "–" if value is None else seconds_text(value)

    return DataFrame(
        {
            "model": row.model,
            "operators": str(row.operators),
            "contracted": str(row.contracted),
            "downsets": "too many to count" if row.downsets is None else f"{row.downsets:,}",
            "exact": seconds_text(row.exact_seconds),
            "proven": "yes" if row.proven else "no",
            "exact, three kinds": seconds_text(row.unequal_seconds),
            "proven, three kinds": "yes" if row.unequal_proven else "no",
            "pipedream": seconds(row.pipedream_seconds),
            "pipedream-graph": seconds(row.pipedream_graph_seconds),
            "pipedream-code": seconds(row.code_seconds),
        }
        for row in rows
    )


def scale_table(rows: Iterable[ScaleRow]) -> DataFrame:
    """Return the rows as text."""
    return DataFrame(
        {
            "model": row.model,
            "accelerators": f"{row.accelerators:,}",
            "stages": str(row.configuration.count("-") + 1),
            "exact": seconds_text(row.exact_seconds),
            "memory of it": decimal(row.peak_bytes),
            "pipedream": seconds_text(row.pipedream_seconds),
            "simulating 8 minibatches": seconds_text(row.simulation_seconds),
        }
        for row in rows
    )
