"""``drlpp plan --all``: every planner on one problem."""

from __future__ import annotations

from contextlib import suppress

from rich.console import Console

from drlpp.cli.command_line import said_if_long
from drlpp.cli.planning.plan_record import plan_record
from drlpp.cli.planning.planning_report import plans_table
from drlpp.errors import InvalidInput
from drlpp.planners import PLANNERS, PlanningProblem, plan, played
from drlpp.schedule.method import Method


def show_all_planners(
    console: Console, problem: PlanningProblem, method: Method, *, as_json: bool
) -> None:
    """Print what each planner finds, or why it finds nothing.

    Args:
        console: to print on.
        problem: for all.
        method: that each plan is simulated with, at its own depth.
        as_json: as plain data, for scripts.
    """
    plans, failures = [], {}
    for number, name in enumerate(PLANNERS, 1):
        try:
            with said_if_long(f"planning with {name} ({number} of {len(PLANNERS)})"):
                plans.append(plan(name, problem))
        except InvalidInput as error:
            failures[name] = str(error)
    simulated = {}
    for found in plans:
        with suppress(InvalidInput), said_if_long("simulating"):
            simulated[found.method] = played(found, method)
    if not as_json:
        console.print(plans_table(plans, simulated, failures))
        return
    records = [plan_record(found, simulated.get(found.method)) for found in plans]
    records += [{"method": name, "error": reason} for name, reason in failures.items()]
    console.print_json(data=records)
