"""How fast is the runtime, against what its workers compute, and against torch's own means?

    python -m benchmarks.runtime_speed --json                       # an hour; resumable
    python -m benchmarks.runtime_speed --emulation control-groups   # needs root
    python -m benchmarks.runtime_speed --short                      # a minute, to see it work

Three questions, whose goals and answers ``docs/results.md`` has: how close the steady state of 1F1B
comes to what the busiest worker computes; how much faster it is than schedules that flush, this
runtime's and those of ``torch.distributed.pipelining``, and than ``DistributedDataParallel``, with
the same model, cuts, optimizer and samples for every update; what weight prediction costs. All run
on the same emulated accelerators, in turns. Before that, each of them has to train to the weights
that plain PyTorch gives (for asynchronous methods, the reference executor). The exit code is 1 if a
goal is not met.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group

from benchmarks.machine import this_machine
from benchmarks.models import MODELS, SMALL_MODELS
from benchmarks.options import JsonOption
from benchmarks.report import terminal
from benchmarks.runtime_speed.report import (
    NUMERICS_GOAL,
    rows_of,
    table_of,
    verdict_table,
    verdicts_of,
)
from benchmarks.runtime_speed.runner import SideBySide, side_by_side
from benchmarks.runtime_speed.samples import (
    Case,
    Contender,
    Sample,
    Settings,
    SpeedSamples,
)
from drlpp.cli.command_line import build_console, resume_hint_on_interrupt, run_program
from drlpp.errors import InvalidInput, RunFailure
from drlpp.io.documents import read_document, write_document
from drlpp.specs.optimizer_spec import OptimizerSpec

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


class Emulation(StrEnum):
    """How workers become accelerators."""

    DILATION = "dilation"
    CONTROL_GROUPS = "control-groups"


@app.command()
def main(
    emulation: Annotated[
        Emulation,
        typer.Option(
            help="Workers sleep in proportion to the processor time that they took, or have CPU "
            "quotas, which takes root."
        ),
    ] = Emulation.DILATION,
    speed: Annotated[float, typer.Option(help="Of an accelerator, in cores.")] = 0.1,
    repetitions: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Of everything, in turns.",
            show_default=f"{FULL.repetitions}, or 1 if short",
        ),
    ] = None,
    minibatches: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Of each repetition.",
            show_default=f"{FULL.minibatches}, or {SHORT.minibatches} if short",
        ),
    ] = None,
    models: Annotated[str, typer.Option(help="Which.")] = "convolutions,feed_forwards",
    optimizer: Annotated[str, typer.Option(help="Makes the updates.")] = "sgd",
    short: Annotated[bool, typer.Option("--short", help="Small models, one repetition.")] = False,
    out: Annotated[Path, typer.Option(help="Samples; a run goes on with them.")] = Path(
        "runs/runtime-speed.json"
    ),
    as_json: JsonOption = False,
) -> None:
    """Time the runtime beside torch's own pipelines and data parallelism."""
    settings = SHORT if short else FULL
    unknown = sorted(set(models.split(",")) - set(settings.models))
    if unknown:
        raise InvalidInput(f"models {unknown[0]!r}: expected some of {', '.join(settings.models)}")
    changes: dict[str, Any] = {
        "emulation": str(emulation),
        "speed": speed,
        "optimizer": OptimizerSpec.parse(optimizer),
        "models": {name: settings.models[name] for name in models.split(",")},
    }
    given = {"repetitions": repetitions, "minibatches": minibatches}
    changes |= {name: value for name, value in given.items() if value is not None}
    progress = Console(stderr=True)
    with resume_hint_on_interrupt(f"the same command goes on with the samples in {out}"):
        document = measure(settings.model_copy(update=changes), out, progress)
    if as_json:
        print(json.dumps(as_plain(document), indent=1))
    else:
        build_console().print(text_of(document))
    raise typer.Exit(0 if all(verdict.met for verdict in verdicts_of(rows_of(document))) else 1)


def text_of(document: SpeedSamples) -> Group:
    """Return medians, verdicts, and where the samples were taken."""
    rows = rows_of(document)
    settings = document.settings
    return Group(
        terminal(table_of(rows), "Steady state", names=2),
        terminal(verdict_table(verdicts_of(rows)), "Verdicts", names=2),
        f"{document.machine}; accelerators of {settings.speed:g} cores by {settings.emulation}",
    )


def measure(settings: Settings, path: Path, progress: Console) -> SpeedSamples:
    """Take all samples that ``path`` does not have yet; it is written after each.

    Raises:
        InvalidInput: the file has samples of other settings or, while some are missing, of another
            machine; or the accelerators do not fit this machine's cores.
        RunFailure: something cannot be run, or does not give the right weights.
    """
    document = SpeedSamples(settings=settings, machine=this_machine())
    if path.exists():
        document = read_document(path, SpeedSamples)
        if document.settings != settings:
            raise InvalidInput(f"{path} has samples of other settings; name another with --out")
    for model in settings.models:
        for accelerators in settings.accelerators:
            missing = list(_missing(document, settings.cases(model, accelerators)))
            if not missing:
                continue
            if document.samples and not document.machine.is_like(this_machine()):
                raise InvalidInput(
                    f"{path} has samples of another machine ({document.machine}); go on there, or "
                    "name another file with --out"
                )
            with side_by_side(settings, model, accelerators) as cluster:
                pairs = dict.fromkeys((case, contender) for case, contender, _ in missing)
                differences = document.differences | check_numerics(cluster, pairs)
                document = document.model_copy(update={"differences": differences})
                for number, (case, contender, repetition) in enumerate(missing, 1):
                    seconds, busiest = cluster.times(case, contender)
                    sample = Sample(
                        case=case,
                        contender=contender,
                        repetition=repetition,
                        seconds=seconds,
                        busiest_seconds=busiest,
                    )
                    document = document.model_copy(update={"samples": (*document.samples, sample)})
                    write_document(path, document)
                    progress.print(
                        f"{number}/{len(missing)} {case}: {contender}: {seconds * 1e3:.1f} ms, "
                        f"{seconds / busiest:.3f} × the busiest worker",
                        soft_wrap=True,
                    )
    return document


def _missing(document: SpeedSamples, cases: list[Case]) -> Iterator[tuple[Case, Contender, int]]:
    """Yield the missing samples in rounds, there and back: drift hits all alike."""
    for repetition in range(document.settings.repetitions):
        turns = [(case, who) for case in cases for who in document.settings.contenders(case)]
        for case, contender in turns if repetition % 2 == 0 else reversed(turns):
            if not document.has(case, contender, repetition):
                yield case, contender, repetition


def check_numerics(
    cluster: SideBySide, pairs: Iterable[tuple[Case, Contender]]
) -> dict[str, float]:
    """Return by how much everybody's weights differ from what they should be.

    Raises:
        RunFailure: if one is too large, for then no speeds can be compared.
    """
    found = {}
    for case, contender in pairs:
        difference = found[f"{case}: {contender}"] = cluster.difference(case, contender)
        if not difference <= NUMERICS_GOAL:
            raise RunFailure(
                f"{case}: {contender} ends with weights that differ by {difference:.1e} from "
                f"those that it should have, more than {NUMERICS_GOAL:.0e}"
            )
    return found


def as_plain(document: SpeedSamples) -> dict[str, Any]:
    """Return samples with medians, ratios and verdicts, as JSON has them."""
    rows = rows_of(document)
    return {
        "machine": document.machine.model_dump(),
        "settings": document.settings.model_dump(mode="json"),
        "differences": document.differences,
        "rows": [
            {
                "case": str(row.case),
                "method": str(row.contender),
                "seconds": row.seconds,
                "busiest_seconds": row.busiest_seconds,
                "median_seconds": row.median_seconds,
                "samples_per_second": row.samples_per_second,
                "over_busiest": row.over_busiest,
            }
            for row in rows
        ],
        "verdicts": [asdict(verdict) | {"met": verdict.met} for verdict in verdicts_of(rows)],
    }


FULL = Settings(
    models=MODELS,
    straight=(
        (4, 4),
        (3, 5),
        (6, 2),
        (2, 2, 2, 2),
        (3, 2, 2, 1),
        (1, 2, 2, 3),
        (4, 2, 1, 1),
    ),
    replicated=(
        ((5, 3), (2, 1)),
        ((3, 5), (1, 2)),
        ((4, 2, 2), (2, 1, 1)),
        ((2, 4, 2), (1, 2, 1)),
        ((4, 4), (2, 2)),
    ),
    microbatches=(4, 8, 16),
    minibatches=12,
    repetitions=5,
    speed=0.1,
    emulation="dilation",
    optimizer=OptimizerSpec(),
)
SHORT = FULL.model_copy(
    update={
        "models": SMALL_MODELS,
        "straight": ((4, 4), (3, 2, 2, 1)),
        "replicated": (((4, 2, 2), (2, 1, 1)),),
        "microbatches": (2,),
        "minibatches": 4,
        "repetitions": 1,
    }
)


if __name__ == "__main__":
    run_program(app, "benchmarks.runtime_speed")
