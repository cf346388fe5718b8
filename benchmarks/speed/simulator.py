"""How fast is the simulator, and how do its time and memory grow with the cluster?

    python -m benchmarks.speed simulator            # a few minutes; --json for programs

Every row is one placement in a process of its own: even stages of a made-up model on hosts of eight
accelerators. *First* includes writing the schedule and compiling it; *again* is another simulation
of the same shape, which for small ones finds the compiled schedule in a cache. Seconds are the
processor's, of which other programs take less. Memory is what the process grew by.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import resource
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy
from pandas import DataFrame
from rich.filesize import decimal

from benchmarks.machine import this_machine
from benchmarks.options import JsonOption
from benchmarks.report import terminal
from benchmarks.speed.fastest import fastest_seconds
from drlpp.cli.command_line import build_console
from drlpp.costs.analytic_model import predict
from drlpp.costs.tensors import Transfer
from drlpp.costs.workload import Workload
from drlpp.io.formatting import seconds_text
from drlpp.placement.placement import Placement, Stage
from drlpp.simulator import simulate
from drlpp.specs.cluster import Cluster, Host, Link

SHAPES = (
    # stages, replicas of each, minibatches to measure
    (4, 1, 30),
    (2, 2, 30),
    (1, 4, 30),
    (16, 1, 30),
    (4, 4, 30),
    (64, 1, 256),
    (16, 4, 30),
    (4, 16, 30),
    (64, 4, 30),
    (16, 16, 30),
    (64, 16, 30),
    (16, 64, 30),
    (1, 1024, 30),
)
_OPERATORS = 128
_LEAST_SECONDS = 0.5
_ACCELERATORS_OF_A_HOST = 8


@dataclass(frozen=True)
class Row:
    """What simulating one placement took.

    ``steps`` are computing and all-reduces of all workers, in all ``minibatches`` that are played.
    """

    stages: int
    replicas: int
    accelerators: int
    minibatches: int
    steps: int
    messages: int
    first_seconds: float
    again_seconds: float
    memory_bytes: int
    seconds_per_minibatch: float
    over_prediction: float


def main(
    as_json: JsonOption = False,
) -> None:
    """Time the simulator on clusters of 4 to 1,024 accelerators."""
    console = build_console()
    # Processes that have imported nothing else, so that their memory is the simulation's.
    context = multiprocessing.get_context("spawn")
    rows = []
    for shape in SHAPES:
        with context.Pool(1) as pool:
            rows.append(pool.apply(time_simulation, shape))
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    console.print(terminal(table_of(rows), "Simulating asynchronous 1F1B", names=0))
    console.print(str(this_machine()))


def time_simulation(stages: int, replicas: int, minibatches: int) -> Row:
    """Simulate one placement."""
    workload, cluster = made_up(stages * replicas)
    placement = even_placement(stages, replicas)
    # What is imported or built once, whatever the size.
    simulate(workload, cluster, even_placement(1, 1), minibatches=1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.process_time()
    simulation = simulate(workload, cluster, placement, minibatches=minibatches)
    seconds = simulation.seconds_per_minibatch
    first = time.process_time() - begin
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    predicted = predict(workload, cluster, placement).seconds_per_minibatch
    # Of more replicas than a round may have minibatches, a run is played that ends.
    steady = simulation.steady
    played = simulation.played if steady is None else steady.played
    return Row(
        stages=stages,
        replicas=replicas,
        accelerators=stages * replicas,
        minibatches=simulation.window.minibatches if steady is None else steady.minibatches_played,
        steps=sum(map(len, played.ends)),
        messages=sum(arrival >= 0 for arrival in played.arrivals),
        first_seconds=first,
        again_seconds=fastest_seconds(
            lambda: (
                simulate(
                    workload, cluster, placement, minibatches=minibatches
                ).seconds_per_minibatch
            ),
            _LEAST_SECONDS,
        ),
        memory_bytes=grown * 1024,
        seconds_per_minibatch=seconds,
        over_prediction=seconds / predicted,
    )


def made_up(accelerators: int) -> tuple[Workload, Cluster]:
    """Return a chain of operators, and hosts of eight accelerators."""
    draw = random.Random(0)
    forward = numpy.array([draw.uniform(1e-3, 3e-3) for _ in range(_OPERATORS)])
    parameters = numpy.array([draw.uniform(0, 4e6) for _ in range(_OPERATORS)])
    workload = Workload(
        model="made up",
        names=tuple(f"operator {number}" for number in range(_OPERATORS)),
        forward_seconds=forward,
        backward_seconds=2 * forward,
        update_seconds=parameters * 1e-10,
        parameter_bytes=parameters,
        kept_bytes=numpy.full(_OPERATORS, 1e6),
        edges=tuple((number, number + 1) for number in range(_OPERATORS - 1)),
        transfers=tuple(
            Transfer((number, number + 1), 1e6, 1e6) for number in range(_OPERATORS - 1)
        ),
    )
    hosts = -(-accelerators // _ACCELERATORS_OF_A_HOST)
    cluster = Cluster(
        hosts=(
            Host(
                name="host",
                count=hosts,
                accelerators=min(accelerators, _ACCELERATORS_OF_A_HOST),
                device="cuda",
            ),
        ),
        within_host=Link(bandwidth_bytes_per_second=5e10, latency_seconds=5e-6),
        between_hosts=Link(bandwidth_bytes_per_second=1.25e10, latency_seconds=2e-5),
    )
    return workload, cluster


def even_placement(stages: int, replicas: int) -> Placement:
    """Return a placement with as many operators in each stage, replicas side by side."""
    size = _OPERATORS // stages
    return Placement(
        stages=tuple(
            Stage(
                operators=tuple(range(stage * size, (stage + 1) * size)),
                accelerators=tuple(range(stage * replicas, (stage + 1) * replicas)),
            )
            for stage in range(stages)
        )
    )


def table_of(rows: Iterable[Row]) -> DataFrame:
    """Return the rows as text, with how time and memory grow with what is played."""
    lines = []
    for row in rows:
        played = row.steps + row.messages
        lines.append(
            {
                "accelerators": f"{row.accelerators:,}",
                "stages × replicas": f"{row.stages} × {row.replicas}",
                "steps and messages": f"{played:,}",
                "first": seconds_text(row.first_seconds),
                "first for each": seconds_text(row.first_seconds / played),
                "again": seconds_text(row.again_seconds),
                "memory": decimal(row.memory_bytes),
                "memory for each": decimal(round(row.memory_bytes / played)),
                "over the formula": f"{row.over_prediction:.3f}",
            }
        )
    return DataFrame(lines)
