"""Do placements train elsewhere as they do here, how fast, and which cut is the fastest there?

python -m benchmarks.elsewhere --rounds 0
python -m benchmarks.elsewhere --document benchmarks/elsewhere/README.md
python -m benchmarks.elsewhere --models vgg16 --ranks 2 --rounds 1 --tiny --results tiny.jsonl

Every line of the results is a training, or all timings of a model on some accelerators, written as
soon as it is done; the same command continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from pandas import DataFrame

from benchmarks.elsewhere.cases import MODELS
from benchmarks.elsewhere.results import Line, SpeedRow, refusals, speed_table, weights_table
from benchmarks.elsewhere.study import METHODS, Study
from benchmarks.machine import this_machine
from benchmarks.options import DocumentOption
from benchmarks.report import markdown, terminal, write_between
from drlpp.cells import read_results_of
from drlpp.cli.command_line import build_console, run_program
from drlpp.errors import InvalidInput, RunFailure
from drlpp.io.json_lines import append

BEGIN = "<!-- elsewhere: written by benchmarks.elsewhere -->"
END = "<!-- end of elsewhere -->"

RESULTS = Path(__file__).parent / "results.jsonl"

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
    rounds: Annotated[int, typer.Option(min=0, help="Timings of each, in turns; 0: none.")] = 3,
    minibatches: Annotated[int, typer.Option(min=1, help="Of a timing.")] = 20,
    tiny: Annotated[bool, typer.Option("--tiny", help="Models of a few weights.")] = False,
    results: Annotated[
        Path, typer.Option(help="A line for each; what is there is not run again.")
    ] = RESULTS,
    document: DocumentOption = None,
) -> None:
    """Export, execute and compare."""
    console = build_console()
    names = [name for name in models.split(",") if name]
    if unknown := sorted({*names} - MODELS.keys()):
        raise InvalidInput(f"model {unknown[0]!r} is unknown; there are {', '.join(MODELS)}")
    counts = [int(count) for count in ranks.split(",")]
    results.parent.mkdir(parents=True, exist_ok=True)
    done = read_results_of("benchmarks.elsewhere", Line, results)
    known = {line.key for line in done}
    failures = []
    with TemporaryDirectory() as folder:
        study = Study(Path(folder), tiny, rounds, minibatches, console.print)
        lasts = dict.fromkeys((speed, speed * unequal))
        for key, found in _cells(study, names, counts, speed, list(lasts)):
            if key in known:
                continue
            try:
                line = found()
            except RunFailure as error:
                failures.append(str(error))
                console.print(f"failed: {error}", soft_wrap=True)
                continue
            append(results, line)
            done.append(line)
    texts = []
    for title, table in _tables(done).items():
        console.print(terminal(table, title, names=4))
        texts.append(f"{title}:\n\n{markdown(table)}")
    rows = [row for line in done for row in (*line.timed, line.trained) if row is not None]
    for why in refusals(rows):
        console.print(f"refused: {why}", soft_wrap=True)
        texts.append(f"Refused: {why}")
    if document is not None:
        machines = "\n".join(dict.fromkeys(str(line.machine) for line in done))
        write_between(document, BEGIN, END, "\n\n".join([*texts, machines]))
    if failures:
        raise RunFailure(f"{len(failures)} cells failed; the same command tries them again")


def _cells(
    study: Study, names: list[str], counts: list[int], speed: float, lasts: list[float]
) -> Iterator[tuple[tuple[object, ...], Callable[[], Line]]]:
    """Yield the keys of lines and how to get them: all trainings, then timings if there are any."""
    machine = this_machine()

    def trained(name: str, count: int, method: str) -> Line:
        return Line(machine=machine, trained=study.weights(name, count, method))

    def timed(name: str, speeds: tuple[float, ...]) -> Line:
        return Line(machine=machine, rounds=study.rounds, timed=study.speeds(name, speeds))

    for name, count, method in product(names, counts, METHODS):
        yield (study.title(name), count, method), partial(trained, name, count, method)
    if not study.rounds:
        return
    for name, last, count in product(names, lasts, counts):
        speeds = (speed,) * (count - 1) + (last,)
        key = study.title(name), speeds, study.rounds, study.minibatches
        yield key, partial(timed, name, speeds)


def _tables(lines: list[Line]) -> dict[str, DataFrame]:
    """Return tables by their titles."""
    trained = [line.trained for line in lines if line.trained is not None]
    tables = {}
    if trained:
        tables["Weights after 20 minibatches, in 64 bits"] = weights_table(trained)
    timed: dict[float, list[tuple[SpeedRow, ...]]] = {}
    for line in lines:
        if line.timed:
            first, *_, last = line.timed[0].speeds
            timed.setdefault(last / first, []).append(line.timed)
    for part, cells in timed.items():
        tables[f"The last accelerator at {part:g} of the others' speed"] = speed_table(cells)
    return tables


if __name__ == "__main__":
    run_program(app, "benchmarks.elsewhere")
