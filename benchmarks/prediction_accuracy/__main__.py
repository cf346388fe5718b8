"""How well the simulator and the planners' rule predict what live workers measure.

For every model: some planners' placements and many random ones, replicated and branching ones among
them, on workers that emulate equal accelerators: by dilation each takes its processor time divided
by ``--speed``, and sleeps the rest of it, so that all compute at the same time on few cores; by
quotas the kernel gives each that part of a core. Every placement is measured several times, in
turns, and predicted from one profile: from operators alone, and with what the profile's short runs
say. None of the placements is one of these runs, so all are held out.

    python -m benchmarks.prediction_accuracy --document benchmarks/prediction_accuracy/README.md
    python -m benchmarks.prediction_accuracy --emulation quotas        # needs root
"""

from __future__ import annotations

import json
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cells import Where, all_of, run_cells
from benchmarks.options import ClusterOption, DocumentOption, JsonOption
from benchmarks.prediction_accuracy.measuring import Cell, Emulation, compare, read_results
from benchmarks.prediction_accuracy.report import (
    draw_scatter,
    each,
    summary,
    write_accuracy,
)
from benchmarks.report import terminal
from drlpp.cli.command_line import build_console, run_program

MODELS = ("alexnet", "vgg16", "resnet50", "gnmt4", "transformer")
FIGURE = Path("docs/figures/prediction-accuracy.png")

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def main(
    results: Annotated[
        Path, typer.Option(help="File of results; what it has is not measured again.")
    ] = Path("runs/prediction-accuracy.jsonl"),
    models: Annotated[str, typer.Option(help="Names in the zoo.")] = ",".join(MODELS),
    emulation: Annotated[
        Emulation, typer.Option(help="Of accelerators; quotas are control groups, and need root.")
    ] = Emulation.DILATION,
    workers: Annotated[int, typer.Option(help="Emulated accelerators.")] = 4,
    speed: Annotated[float, typer.Option(help="Of each, relative to a core.")] = 0.15,
    placements: Annotated[int, typer.Option(help="Of every model.")] = 20,
    minibatches: Annotated[int, typer.Option(help="Of a measurement.")] = 12,
    times: Annotated[int, typer.Option(help="Measurements of a placement.")] = 2,
    seed: Annotated[int, typer.Option(help="Of the random placements.")] = 0,
    cluster: ClusterOption = None,
    document: DocumentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure placements, predict them, and compare."""
    cells = [
        Cell(
            model=model,
            emulation=emulation,
            workers=workers,
            speed=speed,
            placements=placements,
            minibatches=minibatches,
            times=times,
            seed=seed,
        )
        for model in models.split(",")
    ]
    console = build_console()
    done = run_cells(
        compare,
        all_of(cells, attrgetter("cell")),
        results,
        read_results,
        # It times the machine.
        Where(cluster=cluster, alone=True),
        lambda compared: None if as_json else console.print(f"{compared.cell.model} is measured"),
    )
    found = [p for one in done if one.cell in cells for p in one.predictions]
    if as_json:
        print(json.dumps([prediction.model_dump() for prediction in found], indent=1))
    else:
        console.print(terminal(each(found), names=3), terminal(summary(found)))
    if document is not None:
        draw_scatter(found, FIGURE)
        write_accuracy(document, found)
        console.print(f"written to {document} and {FIGURE}")


if __name__ == "__main__":
    run_program(app, "benchmarks.prediction_accuracy")
