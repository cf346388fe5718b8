"""Agents and searches at equal numbers of measurements."""

import typer

from benchmarks.agent_study import comparison, gap
from drlpp.cli.command_line import run_program

app = typer.Typer(help=__doc__, pretty_exceptions_enable=False, add_completion=False)
app.command("compare")(comparison.main)
app.command("gap")(gap.main)

if __name__ == "__main__":
    run_program(app, "benchmarks.agent_study")
