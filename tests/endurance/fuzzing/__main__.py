"""Damaged files for everything that reads files."""

import typer

from drlpp.cli.command_line import run_program
from tests.endurance.fuzzing.loaders import main

app = typer.Typer(help=__doc__, pretty_exceptions_enable=False, add_completion=False)
app.command()(main)

if __name__ == "__main__":
    run_program(app, "tests.endurance.fuzzing")
