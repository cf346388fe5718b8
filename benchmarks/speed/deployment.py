"""How long does deploying a placement on running workers take, and what does it leave behind?

    python -m benchmarks.speed deployment              # AlexNet, 60 M parameters; --json
    python -m benchmarks.speed deployment --size small --deployments 20

Placements take turns, straight and replicated ones. Times are medians over the deployments after
the first of each. What a worker holds after the second deployment of a placement is compared with
what it holds after the last one of the same placement: memory, threads, open files and sockets.
The exit code is 1 if a goal is not met.
"""

from __future__ import annotations

import json
import os
import statistics
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from pandas import DataFrame
from rich.console import Group
from rich.filesize import decimal

from benchmarks.options import JsonOption
from benchmarks.processes import ProcessFacts, facts_of
from benchmarks.report import terminal
from drlpp.cli.command_line import Size, SizeOption, build_console
from drlpp.errors import InvalidInput
from drlpp.io.formatting import seconds_text
from drlpp.models.model_reference import ModelReference
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession
from drlpp.runtime.deploying.deployment import DeploymentTimes

SECONDS_GOAL = 1.0
GROWTH_GOAL = 0.01


@dataclass(frozen=True)
class Held:
    """What a process held after an early and after the last deployment of a placement.

    ``process`` is a worker's number, or the controller.
    """

    configuration: str
    process: str
    early: ProcessFacts
    late: ProcessFacts

    @property
    def growth(self) -> float:
        """Of its memory."""
        return self.late.memory_bytes / self.early.memory_bytes - 1


@dataclass(frozen=True)
class DeploymentReport:
    """What was found.

    Attributes:
        model: that was deployed.
        parameter_bytes: of it.
        times: of every deployment but the first of each placement.
        held: by placement and process.
        files: in the session's folder, at the beginning and the end.
    """

    model: str
    parameter_bytes: int
    times: tuple[DeploymentTimes, ...]
    held: tuple[Held, ...]
    files: tuple[int, int]

    def median(self, part: str) -> float:
        """Return the median of a field of :class:`DeploymentTimes`, in seconds."""
        return statistics.median(getattr(times, part) for times in self.times)

    @property
    def growth(self) -> float:
        """Of the worker that grew most, by its median over the placements."""
        workers = {held.process for held in self.held if held.process != "controller"}
        return max(
            statistics.median(held.growth for held in self.held if held.process == worker)
            for worker in workers
        )

    @property
    def leaves_nothing(self) -> bool:
        """Whether threads, open files and sockets, and the session's files, are as many."""
        return self.files[0] == self.files[1] and all(
            (held.early.threads, held.early.open_files) == (held.late.threads, held.late.open_files)
            for held in self.held
        )

    @property
    def verdicts(self) -> dict[str, bool]:
        """Whether each goal is met."""
        return {
            f"a deployment takes less than {SECONDS_GOAL:g} s": self.median("total_seconds")
            < SECONDS_GOAL,
            f"no worker's memory grows by more than {GROWTH_GOAL:.0%}": self.growth <= GROWTH_GOAL,
            "as many threads, open files and sockets": self.leaves_nothing,
        }


def main(
    model: Annotated[str, typer.Option(help="A name in the zoo.")] = "alexnet",
    size: SizeOption = Size.PUBLISHED,
    workers: Annotated[int, typer.Option(min=2, help="Worker processes.")] = 4,
    deployments: Annotated[int, typer.Option(help="In a row.")] = 200,
    as_json: JsonOption = False,
) -> None:
    """Deploy placements again and again."""
    with ClusterSession(ModelReference.named(model, size), workers) as session:
        report = deploy_again_and_again(session, deployments)
    if as_json:
        found = asdict(report) | {"growth": report.growth, "verdicts": report.verdicts}
        print(json.dumps(found, indent=1))
    else:
        build_console().print(text_of(report))
    raise typer.Exit(0 if all(report.verdicts.values()) else 1)


def deploy_again_and_again(session: ClusterSession, deployments: int) -> DeploymentReport:
    """Deploy the session's model ``deployments`` times.

    Raises:
        InvalidInput: too few deployments to compare anything.
    """
    placements = some_placements(len(session.graph), session.accelerators)
    rounds, rest = divmod(deployments, len(placements))
    if rounds < 3 or rest:
        raise InvalidInput(
            f"deployments is {deployments}; {len(placements)} placements take turns, so it has to "
            f"be a multiple of that, {3 * len(placements)} or more"
        )
    times: list[DeploymentTimes] = []
    early: dict[str, dict[str, ProcessFacts]] = {}
    held: list[Held] = []
    files = [0, 0]
    for turn in range(rounds):
        for placement in placements:
            deployed = session.deploy(placement).times
            name = placement.configuration
            if turn > 0:
                times.append(deployed)
            if turn == 1:
                early[name] = _resources(session)
                files[0] = files[0] or session.file_count
            elif turn == rounds - 1:
                late = _resources(session)
                held += [
                    Held(name, process, early[name][process], late[process]) for process in late
                ]
                files[1] = session.file_count
    state = session.captured.state.values()
    return DeploymentReport(
        model=str(session.captured.reference),
        parameter_bytes=sum(tensor.nbytes for tensor in state),
        times=tuple(times),
        held=tuple(held),
        files=(files[0], files[1]),
    )


def some_placements(operators: int, workers: int) -> list[Placement]:
    """Return placements that use every worker.

    They are straight, replicated at both ends, and all replicas of one stage.
    """
    even = [operator * workers // operators for operator in range(operators)]
    fewer = [operator * (workers - 1) // operators for operator in range(operators)]
    rank = list(range(workers))
    return [
        Placement.from_assignment(even, rank),
        Placement.from_assignment(fewer, [0, *rank[:-1]]),
        Placement.from_assignment(fewer, [*rank[:-1], workers - 2]),
        Placement.from_assignment([0] * operators, [0] * workers),
    ]


def _resources(session: ClusterSession) -> dict[str, ProcessFacts]:
    found = {
        f"worker {worker}": facts_of(process) for worker, process in enumerate(session.process_ids)
    }
    return found | {"controller": facts_of(os.getpid())}


def text_of(report: DeploymentReport) -> Group:
    """Return two tables and the verdicts."""
    parts = ("total", "cutting", "loading", "connecting", "building")
    times = DataFrame([{part: seconds_text(report.median(f"{part}_seconds")) for part in parts}])
    held = DataFrame(
        {
            "placement": row.configuration,
            "process": row.process,
            "memory": decimal(row.early.memory_bytes),
            "memory, late": decimal(row.late.memory_bytes),
            "grown": f"{row.growth:.2%}",
            "private": decimal(row.early.private_bytes),
            "private, late": decimal(row.late.private_bytes),
            "threads": f"{row.early.threads} → {row.late.threads}",
            "open files": f"{row.early.open_files} → {row.late.open_files}",
        }
        for row in report.held
    )
    lines = [f"{text}: {'met' if met else 'not met'}" for text, met in report.verdicts.items()]
    return Group(
        terminal(
            times,
            f"Deploying {report.model}, {decimal(report.parameter_bytes)} of weights",
            names=0,
        ),
        terminal(held, "Held after it, early and late", names=2),
        *lines,
    )
