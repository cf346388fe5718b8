"""What agents log while they learn, as pictures."""

import typer

from benchmarks.reward_curves import comparing, drawing, training
from drlpp.cli.command_line import run_program

app = typer.Typer(help=__doc__, pretty_exceptions_enable=False, add_completion=False)
app.command("train")(training.main)
app.command("draw")(drawing.main)
app.command("compare")(comparing.main)

if __name__ == "__main__":
    run_program(app, "benchmarks.reward_curves")
