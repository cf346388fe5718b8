"""How long planners, the simulator, a search and deployments take."""

import typer

from benchmarks.speed import (
    deployment,
    planners,
    searching,
    simulator,
)
from drlpp.cli.command_line import run_program

app = typer.Typer(help=__doc__, pretty_exceptions_enable=False, add_completion=False)
app.command("planners")(planners.main)
app.command("simulator")(simulator.main)
app.command("search")(searching.main)
app.command("deployment")(deployment.main)

if __name__ == "__main__":
    run_program(app, "benchmarks.speed")
