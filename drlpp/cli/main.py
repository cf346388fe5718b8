"""The command line ``drlpp``: learn, train, plan, profile, race, show, export."""

from __future__ import annotations

from typing import Annotated

import typer

from drlpp.cli.command_line import run_program
from drlpp.cli.commands import add_command, program
from drlpp.cli.export_command import export_placement
from drlpp.cli.learning.learn_command import learn
from drlpp.cli.learning.race_command import race_model
from drlpp.cli.planning.plan_command import plan_placement, profile_model
from drlpp.cli.show_command import show
from drlpp.cli.train_command import train

app = program(no_args_is_help=True)


def _show_versions(asked: bool) -> None:
    if asked:
        from drlpp.placement.placement_file import Versions

        versions = Versions.current()
        typer.echo(f"drlpp {versions.drlpp}, torch {versions.torch}, Python {versions.python}")
        raise typer.Exit


@app.callback()
def _begin(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_versions, is_eager=True, help="Show versions, and exit."
        ),
    ] = False,
) -> None:
    """Find the fastest pipeline placement of a PyTorch model, and train with it."""


add_command(app, "learn", learn)
add_command(app, "train", train)
add_command(app, "race", race_model)
add_command(app, "plan", plan_placement)
add_command(app, "profile", profile_model)
add_command(app, "export", export_placement)
add_command(app, "show", show)


def main() -> None:
    """Run the installed command."""
    run_program(app, "drlpp")
