"""drl-pp's Table 1 on this machine: an agent against the planners, live on emulated accelerators.

Every worker takes its processor time divided by its speed, and sleeps the rest of it, so that all
compute at the same time on few cores. For every model an agent learns a placement within a budget
of measurements; then its best placements race against what a user has without it: plain PyTorch on
one of the fastest accelerators, data parallelism, GPipe, flushed 1F1B, PipeDream's planner and the
exact planner, of each the best.

    python -m benchmarks.live_table --document benchmarks/live_table/README.md
    python -m benchmarks.live_table --speeds 0.2,0.2,0.1,0.1 --models alexnet --budget 40

What was measured is kept in ``--out``, so that an interrupted run continues.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.drl_pp_table import PAPER
from benchmarks.live_table.report import LiveRow, live_row, live_tables, write_live_tables
from benchmarks.options import DocumentOption, JsonOption
from drlpp.agents import hyperparameters_of, learn_placement
from drlpp.cli.command_line import build_console, run_program
from drlpp.comparison.compare import compare
from drlpp.comparison.contenders import Contender
from drlpp.comparison.race import RaceRules
from drlpp.comparison.rivals import rival_heats
from drlpp.costs.memory import MemoryModel
from drlpp.envs import CostPrior, MeasurementMemory
from drlpp.errors import InvalidInput
from drlpp.io.run_folder import open_run_folder
from drlpp.models.model_reference import ModelReference
from drlpp.planners import Space
from drlpp.runtime import ClusterSession, load_or_measure_profile
from drlpp.schedule.analysis.staleness import usual_staleness

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@dataclass(frozen=True)
class Settings:
    """How every model is treated.

    Attributes:
        agent: its name, or the path of a YAML file with hyperparameters.
        speeds: of every worker.
        budget: distinct placements that the agent measures.
        repetitions: runs of each.
        finalists: of the agent's placements in the race.
        rounds: of the race, at most.
        minibatches: of a measurement.
        seed: of the agent.
        hide_speeds: the agent knows only the number of accelerators; planners know all.
    """

    agent: str
    speeds: tuple[float, ...]
    budget: int
    repetitions: int
    finalists: int
    rounds: int
    minibatches: int
    seed: int
    hide_speeds: bool

    @property
    def agent_name(self) -> str:
        """Who found the agent's placements."""
        return Path(self.agent).stem

    @property
    def title(self) -> str:
        """What the table shows, above it."""
        speeds = ", ".join(f"{speed:g}" for speed in self.speeds)
        hidden = ", which the agent is not told" if self.hide_speeds else ""
        return (
            f"Workers of speed {speeds}{hidden}; agent `{self.agent_name}` with {self.budget} "
            f"placements, repetitions {self.repetitions}; races of at most {self.rounds} rounds; "
            "measurements "
            f"over {self.minibatches} minibatches; {datetime.now(UTC):%Y-%m-%d}."
        )


@app.command()
def main(
    models: Annotated[str, typer.Option(help="Names in the zoo.")] = ",".join(PAPER),
    agent: Annotated[
        str, typer.Option(help="Its name, or a YAML file of hyperparameters.")
    ] = "guided",
    speeds: Annotated[
        str, typer.Option(help="Of every worker; their sum stays well below 0.9 of a core.")
    ] = "0.15,0.15,0.15,0.15",
    budget: Annotated[int, typer.Option(min=1, help="Placements that the agent measures.")] = 100,
    repetitions: Annotated[int, typer.Option(min=1, help="Runs of each.")] = 1,
    finalists: Annotated[int, typer.Option(min=1, help="Of them in the final race.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Of the race, at most.")] = 7,
    minibatches: Annotated[int, typer.Option(min=1, help="Of a measurement.")] = 30,
    seed: Annotated[int, typer.Option(min=0, help="Of the agent.")] = 0,
    hide_speeds: Annotated[
        bool, typer.Option("--hide-speeds", help="Tell them to planners, but not to the agent.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for what is measured.")] = Path(
        "runs/live-table"
    ),
    document: DocumentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Learn a placement for every model, and race it against the planners'."""
    hyperparameters_of(agent)
    settings = Settings(
        agent=agent,
        speeds=_numbers(speeds),
        budget=budget,
        repetitions=repetitions,
        finalists=finalists,
        rounds=rounds,
        minibatches=minibatches,
        seed=seed,
        hide_speeds=hide_speeds,
    )
    console = build_console()
    if document is not None:
        # A document without the marks is refused before all the work, not after.
        write_live_tables(document, [], "Being measured.")
    rows: list[LiveRow] = []
    for model in models.split(","):
        rows.append(measure_row(model, settings, out / model, Console(quiet=as_json)))
        if document is not None:
            write_live_tables(document, rows, settings.title)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        console.print(live_tables(rows, settings.title))


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise InvalidInput(
            f"--speeds is {text!r}; expected a number for each worker, such as 0.2,0.2,0.1,0.1"
        ) from None


def measure_row(model: str, settings: Settings, folder: Path, console: Console) -> LiveRow:
    """Learn and race on one model, or continue with what ``folder`` holds of it.

    Raises:
        InvalidInput: if the folder holds a run with other settings.
        KeyboardInterrupt: after Ctrl-C; what was measured is in the folder.
    """
    kept = asdict(settings)
    for may_change in ("budget", "finalists", "rounds"):
        del kept[may_change]
    kept["speeds"] = list(settings.speeds)
    workers = len(settings.speeds)
    reference = ModelReference.named(model)
    with (
        open_run_folder(folder, "live_table.py", kept, resume=True),
        ClusterSession(reference, workers, speeds=settings.speeds, seed=settings.seed) as session,
    ):
        profile, cluster = load_or_measure_profile(session, folder)
        memory = MeasurementMemory(
            session, settings.minibatches, folder / "measurements.jsonl", settings.repetitions
        )
        if memory.distinct < settings.budget and not learn_placement(
            memory,
            folder,
            hyperparameters=hyperparameters_of(settings.agent),
            budget=settings.budget,
            seed=settings.seed,
            declared=CostPrior.of(
                profile,
                cluster.with_speeds([1.0] * workers) if settings.hide_speeds else cluster,
                session.method,
                MemoryModel.of(session.method, session.optimizer),
            ),
            console=console,
        ):
            raise KeyboardInterrupt
        contenders = [
            Contender.of(candidate, settings.agent_name)
            for candidate, _ in memory.fastest(settings.finalists)
        ]
        space = Space(session.method, None, usual_staleness(session.method, workers))
        comparison = compare(
            session,
            contenders,
            rival_heats(session, profile, cluster, space),
            rules=RaceRules(rounds=settings.rounds),
            minibatches=settings.minibatches,
            path=folder / "comparison.json",
        )
    return live_row(model, comparison, settings.agent_name)


if __name__ == "__main__":
    run_program(app, "benchmarks.live_table")
