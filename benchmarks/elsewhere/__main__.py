"""Do placements train elsewhere as they do here, how fast, and which cut is the fastest there?

python -m benchmarks.elsewhere --document benchmarks/elsewhere/README.md
python -m benchmarks.elsewhere --models vgg16 --ranks 2 --rounds 1 --minibatches 20 --tiny
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchmarks.elsewhere.cases import MODELS
from benchmarks.elsewhere.study import Study, refusals, speed_table, weights_table
from benchmarks.machine import this_machine
from benchmarks.options import DocumentOption
from benchmarks.report import markdown, terminal, write_between
from drlpp.cli.command_line import build_console, run_program
from drlpp.errors import InvalidInput

BEGIN = "<!-- elsewhere: written by benchmarks.elsewhere -->"
END = "<!-- end of elsewhere -->"

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def main(
    models: Annotated[str, typer.Option(help="Separated by commas.")] = ",".join(MODELS),
    ranks: Annotated[str, typer.Option(help="Processes, each a stage.")] = "2,4",
    unequal: Annotated[
        float, typer.Option(min=0.05, max=1, help="Speed of the last accelerator, once more.")
    ] = 0.5,
    speed: Annotated[
        float, typer.Option(min=0.05, max=1, help="Of all others, so that all fit on the cores.")
    ] = 0.4,
    rounds: Annotated[int, typer.Option(min=0, help="Timings of each, in turns; 0: none.")] = 5,
    minibatches: Annotated[int, typer.Option(min=1, help="Of a timing.")] = 60,
    tiny: Annotated[bool, typer.Option("--tiny", help="Models of a few weights.")] = False,
    document: DocumentOption = None,
) -> None:
    """Export, execute and compare."""
    console = build_console()
    names = [name for name in models.split(",") if name]
    if unknown := sorted({*names} - MODELS.keys()):
        raise InvalidInput(f"model {unknown[0]!r} is unknown; there are {', '.join(MODELS)}")
    counts = [int(count) for count in ranks.split(",")]
    texts = []
    with TemporaryDirectory() as folder:
        study = Study(Path(folder), tiny, rounds, minibatches, console.print)
        trained = [row for name in names for count in counts for row in study.weights(name, count)]
        table = weights_table(trained)
        console.print(terminal(table, "weights after 20 minibatches, in 64 bits", names=4))
        texts += [markdown(table), *(f"Refused: {why}" for why in refusals(trained))]
        for why in refusals(trained):
            console.print(f"refused: {why}", soft_wrap=True)
        if rounds:
            for last in dict.fromkeys((1.0, unequal)):
                rows = [
                    row
                    for name in names
                    for count in counts
                    for row in study.speeds(name, (speed,) * (count - 1) + (speed * last,))
                ]
                table = speed_table(rows)
                title = f"the last accelerator at {last:g} of the others' speed"
                console.print(terminal(table, title, names=4))
                for why in refusals(rows):
                    console.print(f"refused: {why}", soft_wrap=True)
                texts.append(f"{title.capitalize()}:\n\n{markdown(table)}")
    if document is not None:
        write_between(document, BEGIN, END, "\n\n".join([*texts, str(this_machine())]))


if __name__ == "__main__":
    run_program(app, "benchmarks.elsewhere")
