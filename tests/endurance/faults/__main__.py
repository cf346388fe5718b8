"""Is a session hard to kill? Faults at random moments of trainings and measurements, many of each.

    python -m tests.endurance.faults --count 20 --out faults.jsonl        # about two hours

Every fault has to end with a readable reason of the right kind; no process, file, port or shared
memory may be left. A training has to continue from its last checkpoint and end with the bits of
one that nothing happened to. After a measurement the next one has to succeed. The model is small
(`tests.support.models.small:perceptron`, 2-1), so what is timed is how long it takes until a fault
is noticed, with a patience of 10 s for workers that say nothing. The exit code is 1 if anything
went otherwise.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated

import typer
from pandas import DataFrame

from benchmarks.report import terminal
from drlpp.cli.command_line import build_console, run_program
from drlpp.io.formatting import seconds_text
from drlpp.models.model_reference import ModelReference
from tests.endurance.faults.strikes import faults_during
from tests.endurance.faults.trials import FaultTrials, Trial
from tests.support.processes import temporary_files_in

_EPOCHS = 2

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


def attempted(kind: str, during: str, trial: Callable[[], Trial]) -> Trial:
    """Return the trial; one that raises counts as not as expected, and the others continue."""
    try:
        return trial()
    except Exception as error:
        reason = " ".join(str(error).split())
        return Trial(kind, during, type(error).__name__, reason, 0.0, went_on=False)


def table_of(trials: Sequence[Trial]) -> DataFrame:
    """Return a line for every kind of fault, as text."""
    found = DataFrame([asdict(trial) for trial in trials])
    return DataFrame(
        {
            "fault": kind,
            "during": during,
            "trials": str(len(of_kind)),
            "told": ", ".join(sorted(set(of_kind.failure.replace("", "–")))),
            "median": seconds_text(of_kind.seconds.median()),
            "longest": seconds_text(of_kind.seconds.max()),
            "went on": f"{of_kind.went_on.sum()} of {len(of_kind)}",
            "clean": f"{(of_kind.left.str.len() == 0).sum()} of {len(of_kind)}",
        }
        for (during, kind), of_kind in found.groupby(["during", "kind"], sort=False)
    )


@app.command()
def main(
    out: Annotated[Path, typer.Option(help="Where trials go, a line each.")],
    count: Annotated[int, typer.Option(help="Trials of every kind.")] = 20,
) -> None:
    """Inject faults and tell what came of them."""
    console = build_console()
    found: list[Trial] = []
    with (
        tempfile.TemporaryDirectory(prefix="drlpp-faults-") as folder,
        temporary_files_in(folder),
        out.open("w") as file,
    ):
        model = ModelReference.named("tests.support.models.small:perceptron")
        trials = FaultTrials(model, _EPOCHS, Path(folder))
        work = {"training": trials.training, "measuring": trials.measuring}
        # The kinds in turns.
        kinds = [(during, kind) for during in work for kind in faults_during(during)]
        for seed, (during, kind) in product(range(count), kinds):
            trial = attempted(kind, during, partial(work[during], kind, seed))
            found.append(trial)
            file.write(json.dumps(asdict(trial)) + "\n")
            file.flush()
            if not trial.as_expected:
                console.print(f"not as expected: {trial}", markup=False)
    console.print(terminal(table_of(found), "faults at random moments", names=2))
    raise typer.Exit(0 if all(trial.as_expected for trial in found) else 1)


if __name__ == "__main__":
    run_program(app, "tests.endurance.faults")
