"""How long a graph of 10,000 operators takes: captured, planned by operators and by blocks, shown.

    python -m benchmarks.speed large

The model is the zoo's small GPT-2 with 720 layers, its costs are made up from sizes, and the
cluster has eight equal accelerators. Every step runs in a process of its own; seconds are the
processor's.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import torch
import typer
from pandas import DataFrame
from rich.filesize import decimal

from benchmarks.options import JsonOption
from benchmarks.report import terminal
from drlpp.capturing.capture import capture
from drlpp.cli.command_line import build_console
from drlpp.cli.showing.tables import describe
from drlpp.costs.profile import Profile
from drlpp.costs.profiles.estimated_profile import estimate_profile
from drlpp.costs.workload import Workload
from drlpp.exporting.layouts.block_cuts import contracted_by_blocks
from drlpp.io.documents import read_document, write_document
from drlpp.io.formatting import seconds_text
from drlpp.models.model_reference import ModelReference
from drlpp.models.zoo import SMALL
from drlpp.planners import PlanningProblem, best_simulated, plan
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Link, local_cluster

PLANNERS = ("data-parallel", "gpipe", "local-search")
"""The exact planner and PipeDream's take minutes, and gigabytes."""

_LINK = Link(bandwidth_bytes_per_second=1e9, latency_seconds=0.0)
_ACCELERATORS = 8


@dataclass(frozen=True)
class Row:
    """What a step took, and what came out; ``memory_bytes`` is the most that its process held."""

    step: str
    seconds: float
    memory_bytes: int
    result: str


def main(
    layers: Annotated[int, typer.Option(min=1, help="Of the model.")] = 720,
    planners: Annotated[str, typer.Option(help="That cut between operators.")] = ",".join(PLANNERS),
    as_json: JsonOption = False,
) -> None:
    """Capture, plan and show a graph of 10,000 operators."""
    console = build_console()
    with TemporaryDirectory() as folder:
        path = Path(folder, "profile.json")
        steps: list[tuple[str, Callable[..., str], tuple[object, ...]]] = [
            ("captured, without the check", _captured, (layers, path)),
            *((f"planned by {name}", _planned, (name, path)) for name in planners.split(",")),
            ("planned by blocks, the best", _planned_by_blocks, (path,)),
            ("shown", _shown, (path,)),
        ]
        rows = [_timed(*step) for step in steps]
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    console.print(
        terminal(
            DataFrame(
                [
                    {
                        "step": row.step,
                        "seconds": seconds_text(row.seconds),
                        "memory": decimal(row.memory_bytes),
                        "result": row.result,
                    }
                    for row in rows
                ]
            )
        )
    )


def _timed(step: str, run: Callable[..., str], arguments: tuple[object, ...]) -> Row:
    """Run a step in a process that has imported this file and nothing else."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_row, (step, run, arguments))


def _row(step: str, run: Callable[..., str], arguments: tuple[object, ...]) -> Row:
    torch.set_num_threads(1)
    begin = time.process_time()
    result = run(*arguments)
    seconds = time.process_time() - begin
    return Row(step, seconds, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, result)


def _captured(layers: int, path: Path) -> str:
    reference = ModelReference.named("gpt2", **{**SMALL["gpt2"], "layers": layers})
    graph = capture(reference, check=False).graph
    write_document(path, estimate_profile(graph))
    return f"{len(graph)} operators"


def _planned(name: str, path: Path) -> str:
    problem = PlanningProblem(
        Workload.of(read_document(path, Profile)), local_cluster(_ACCELERATORS, _LINK)
    )
    found = plan(name, problem)
    return (
        f"{found.placement.configuration}, {seconds_text(found.prediction.seconds_per_minibatch)}"
    )


def _planned_by_blocks(path: Path) -> str:
    profile, method = read_document(path, Profile), Method()
    workload = Workload.of(contracted_by_blocks(profile.graph).profile(profile), method)
    problem = PlanningProblem(workload, local_cluster(_ACCELERATORS, _LINK))
    best = best_simulated(problem, method).best
    seconds = seconds_text(best.seconds_per_minibatch)
    return f"{len(workload)} blocks: {best.plan.placement.configuration}, {seconds} simulated"


def _shown(path: Path) -> str:
    graph = read_document(path, Profile).graph
    console = build_console()
    with console.capture() as captured:
        console.print(describe(graph))
    return f"{len(captured.get().splitlines())} lines"
