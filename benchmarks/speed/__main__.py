"""How long captures, planners, the simulator, agents and deployments take."""

import typer

from benchmarks.speed import (
    agent,
    capture,
    deployment,
    large,
    planners,
    profile,
    searching,
    simulator,
)
from drlpp.cli.command_line import run_program

app = typer.Typer(help=__doc__, pretty_exceptions_enable=False, add_completion=False)
app.command("capture")(capture.main)
app.command("large")(large.main)
app.command("profile")(profile.main)
app.command("planners")(planners.main)
app.command("simulator")(simulator.main)
app.command("search")(searching.main)
app.command("agent")(agent.main)
app.command("deployment")(deployment.main)

if __name__ == "__main__":
    run_program(app, "benchmarks.speed")
