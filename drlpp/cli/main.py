"""The command line ``drlpp``: learn, train, race, plan, profile, export, show."""

from __future__ import annotations

from typing import Annotated

import typer

from drlpp.cli.arguments import Export, Learn, Plan, Profile, Race, Show, Train
from drlpp.cli.command_line import run_program
from drlpp.cli.commands import add_command, program

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


add_command(app, "learn", Learn, "drlpp.cli.learn_command:learn")
add_command(app, "train", Train, "drlpp.cli.train_command:train")
add_command(app, "race", Race, "drlpp.cli.race_command:race")
add_command(app, "plan", Plan, "drlpp.cli.plan_command:plan")
add_command(app, "profile", Profile, "drlpp.cli.plan_command:profile")
add_command(app, "export", Export, "drlpp.cli.export_command:export")
add_command(app, "show", Show, "drlpp.cli.show_command:show")


def main() -> None:
    """Run the installed command."""
    run_program(app, "drlpp")


def train_agent() -> None:
    """Run ``train_agent.py``, which is ``drlpp learn`` alone."""
    alone = program(add_completion=False)
    add_command(alone, None, Learn, "drlpp.cli.learn_command:learn")
    run_program(alone, "train_agent.py")
