"""What more minibatches in flight give on slow links."""

import typer

from benchmarks.in_flight import links, searched, simulated, together
from drlpp.cli.command_line import run_program

app = typer.Typer(help=__doc__, pretty_exceptions_enable=False, add_completion=False)
app.command("simulated")(simulated.main)
app.command("searched")(searched.main)
app.command("links")(links.main)
app.command("together")(together.main)

if __name__ == "__main__":
    run_program(app, "benchmarks.in_flight")
