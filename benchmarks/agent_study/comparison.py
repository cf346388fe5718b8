"""Agents and searches at equal numbers of measurements, on many models, accelerators and links.

    python -m benchmarks.agent_study compare --results runs/agent-study.jsonl \\
        --document benchmarks/agent_study/README.md

Four questions, each a set of runs in the simulator (``--questions``):

* ``right``: what is declared is true. How far is each method from the best known?
* ``wrong``: declared operator times are off by log-normal errors of 0.3, and links are half as fast
  as declared. How much faster is what an agent finds than the best planner's placement?
* ``noise``: as ``wrong``; accelerators share half as many cores, which nobody declares, and what
  is measured is off by 3%. What is found is judged without the noise.
* ``ablation``: as ``wrong``, the guided agent without each of its parts.

Every run is appended to the results at once; what is there already is not run again.
"""

from __future__ import annotations

import os
import time
import zlib
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from benchmarks import PROFILES
from benchmarks.agent_study.instance import Instance, with_errors
from benchmarks.agent_study.methods import METHODS, history_of, variant
from benchmarks.agent_study.tables import BEGIN, END, Result, Task, report
from benchmarks.options import ClusterOption, DocumentOption, ProcessesOption
from benchmarks.report import write_between
from drlpp.cells import Where, all_of, read_results_of, run_cells
from drlpp.cli.command_line import build_console
from drlpp.costs.profile import Profile
from drlpp.costs.synthetic_profiles import FAMILIES, generate
from drlpp.io.documents import read_document
from drlpp.specs.cluster import Link

MODELS = (
    "alexnet",
    "vgg16",
    "resnet50",
    "inception_v3",
    "gnmt4",
    "gnmt8",
    "bert48",
    "transformer",
)
BRANCHING = tuple(family for family in FAMILIES if family != "chain")
GENERATED = tuple(f"{family}-40-{seed}" for family in BRANCHING for seed in range(4))

_CORES = os.cpu_count() or 1

BUDGETS = (50, 100, 200, 400)
FAST, SLOW = 1.25e9, 1.25e8
LATENCY_SECONDS = 5e-5
SETTINGS = ((4, FAST), (4, SLOW), (8, FAST), (8, SLOW))

SLOW_METHODS = ("drl-pp", "maskable-ppo")
"""They take minutes on large models."""

LARGE = ("resnet50", "inception_v3", "bert48", "transformer")
"""Models of more than 100 operators."""

ABLATIONS = (
    "guided-policy",
    "guided-policy without pretrained",
    "guided-policy without practice",
    "guided-policy without planners",
    "guided-policy without calibrate",
    "guided-policy without discrepancy",
    "guided-policy without thompson",
    "guided-policy without neighbours",
)


def main(
    results: Annotated[Path, typer.Option(help="JSON lines, appended to.")],
    questions: Annotated[str, typer.Option()] = "right,wrong,noise,ablation",
    models: Annotated[str, typer.Option()] = ",".join((*MODELS, *GENERATED)),
    settings: Annotated[
        str, typer.Option(help="Accelerators and links, such as 4-fast,8-slow.")
    ] = "4-fast,4-slow,8-fast,8-slow",
    methods: Annotated[str, typer.Option()] = ",".join(METHODS),
    seeds: Annotated[int, typer.Option(min=1)] = 5,
    large_for_all: Annotated[
        bool, typer.Option(help="Also run the slow learners on models of more than 100 operators.")
    ] = False,
    processes: ProcessesOption = _CORES,
    cluster: ClusterOption = None,
    document: DocumentOption = None,
) -> None:
    """Run what is missing in the results, and report all of them."""
    console = build_console()
    chosen = [setting for setting in SETTINGS if _name(*setting) in settings.split(",")]
    tasks = [
        Task(
            question=question,
            model=model,
            accelerators=accelerators,
            bandwidth=bandwidth,
            method=method,
            seed=seed,
        )
        for seed in range(seeds)
        for question in questions.split(",")
        for model in models.split(",")
        for accelerators, bandwidth in chosen
        for method in (ABLATIONS if question == "ablation" else methods.split(","))
        if large_for_all or not (method in SLOW_METHODS and model in LARGE)
    ]
    wanted = all_of(tasks, attrgetter("task"))
    with Progress(console=console) as progress:
        bar = progress.add_task("running", total=len(wanted(read_results(results))))
        found = run_cells(
            run_task,
            wanted,
            results,
            read_results,
            Where(processes, cluster),
            lambda _: progress.advance(bar),
        )
    tables = report(found, BUDGETS)
    console.print(tables, markup=False)
    if document is not None:
        write_between(document, BEGIN, END, tables)


def _name(accelerators: int, bandwidth: float) -> str:
    return f"{accelerators}-{'fast' if bandwidth == FAST else 'slow'}"


def read_results(path: Path) -> list[Result]:
    """Return what was run so far, as :func:`drlpp.cells.read_results_of` does."""
    return read_results_of("benchmarks.agent_study", Result, path)


def run_task(task: Task) -> Result:
    """Let a method spend the largest budget."""
    instance = instance_of(task)
    begin = time.perf_counter()
    method = METHODS.get(task.method) or variant(task.method)
    history = history_of(method, instance, max(BUDGETS), task.seed)
    best = tuple(history[:budget][-1] for budget in BUDGETS)
    return Result(
        **task.model_dump(),
        distinct=len(history),
        wall_seconds=time.perf_counter() - begin,
        best_seconds=best,
        optimum_seconds=instance.optimum,
        planner_seconds=instance.best_planner,
    )


def instance_of(task: Task) -> Instance:
    """Return the model on the accelerators, declared as the question has it."""
    profile = profile_of(task.model)
    link = Link(bandwidth_bytes_per_second=task.bandwidth, latency_seconds=LATENCY_SECONDS)
    declare = partial(Instance.of, task.model, profile, task.accelerators, link)
    if task.question == "right":
        return declare()
    faster = Link(bandwidth_bytes_per_second=2 * task.bandwidth, latency_seconds=LATENCY_SECONDS)
    errors = zlib.crc32(f"{task.model}-{task.seed}".encode())
    declare = partial(
        declare, declared_profile=with_errors(profile, 0.3, errors), declared_link=faster
    )
    if task.question == "noise":
        return declare(cores=task.accelerators // 2, noise=0.03)
    return declare()


def profile_of(model: str) -> Profile:
    """Return a zoo model's profile at CPU size, or a made-up model ``family-operators-seed``."""
    if model in MODELS:
        return read_document(PROFILES / f"{model}.json", Profile)
    family, operators, seed = model.rsplit("-", 2)
    return generate(family, int(operators), int(seed))
