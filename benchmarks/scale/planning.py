"""Planners and the simulator on clusters in racks: time, memory, and what stops being exact."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pandas import DataFrame
from rich.filesize import decimal

from benchmarks.scale.limited import Spent, limited
from benchmarks.scale.problems import WORKLOADS, racks
from drlpp.costs.analytic_model import predict
from drlpp.errors import InvalidInput
from drlpp.io.formatting import seconds_text
from drlpp.placement.placement import Placement
from drlpp.planners import PLANNERS, PlanningProblem, best_simulated
from drlpp.schedule.method import Method
from drlpp.simulator import simulate

ALL = "the best of all, played"
ASKED = ("data-parallel", "gpipe", "pipedream", "exact", ALL)


@dataclass(frozen=True)
class Planned:
    """What a planner found.

    ``seconds`` are those of a minibatch by the planners' rule; ``proven`` says whether nothing is
    faster by it.
    """

    placement: Placement
    seconds: float
    proven: bool


@dataclass(frozen=True)
class Simulated:
    """What the simulator says; ``period`` is None if it found none, so that a window is played."""

    seconds: float
    period: int | None


@dataclass(frozen=True)
class Row:
    """A planner on a cluster, and the simulation of what it found."""

    workload: str
    accelerators: int
    planner: str
    planned: Spent
    simulated: Spent | None


def measure(workloads: Sequence[str], sizes: Sequence[int], seconds: int) -> Iterator[Row]:
    """Plan and simulate; each step in a process of its own, with so many seconds."""
    for size in sizes:
        for workload in workloads:
            known: dict[Placement, Spent] = {}
            for planner in ASKED:
                planned = limited(seconds, plan, workload, size, planner)
                found = planned.value
                simulated = None
                if isinstance(found, Planned):
                    placement = found.placement
                    if placement not in known:
                        known[placement] = limited(seconds, play, workload, size, placement)
                    simulated = known[placement]
                yield Row(workload, size, planner, planned, simulated)


def plan(workload: str, accelerators: int, planner: str) -> Planned | str:
    """Plan, or say why that cannot be done."""
    problem = PlanningProblem(WORKLOADS[workload](), racks(accelerators))
    try:
        if planner == ALL:
            placement = best_simulated(problem, Method()).best.plan.placement
            proven = False
        else:
            solution = PLANNERS[planner](problem)
            placement, proven = solution.placement, solution.proven_optimal
    except InvalidInput as error:
        return str(error)
    seconds = predict(problem.workload, problem.cluster, placement).seconds_per_minibatch
    return Planned(placement, seconds, proven)


def play(workload: str, accelerators: int, placement: Placement) -> Simulated:
    """Play a placement."""
    simulation = simulate(WORKLOADS[workload](), racks(accelerators), placement)
    steady = simulation.steady
    period = None if steady is None else steady.minibatches
    return Simulated(simulation.seconds_per_minibatch, period)


def table_of(rows: Sequence[Row]) -> DataFrame:
    """Return the rows as text."""
    return DataFrame([_line(row) for row in rows])


def _line(row: Row) -> dict[str, str]:
    line = {
        "model": row.workload,
        "accelerators": f"{row.accelerators:,}",
        "planner": row.planner,
        "planned in": seconds_text(row.planned.seconds),
        "memory": decimal(row.planned.memory_bytes),
        "stages": "",
        "a minibatch, by the rule": "",
        "simulated": "",
        "in": "",
        "memory of it": "",
        "period": "",
    }
    found = row.planned.value
    if not isinstance(found, Planned):
        line["planned in"] = row.planned.obstacle or "refused"
        line["memory"] = ""
        return line
    line["stages"] = str(len(found.placement.stages))
    line["a minibatch, by the rule"] = seconds_text(found.seconds) + ", proven" * found.proven
    assert row.simulated is not None
    line["in"] = seconds_text(row.simulated.seconds)
    line["memory of it"] = decimal(row.simulated.memory_bytes)
    if isinstance(played := row.simulated.value, Simulated):
        line["simulated"] = seconds_text(played.seconds)
        line["period"] = "none found" if played.period is None else f"{played.period:,}"
    else:
        line["in"] = row.simulated.obstacle or ""
        line["memory of it"] = ""
    return line
