"""``drlpp learn``: learn a placement on live workers, race it against its rivals, export the best.

The main job, which ``train_agent.py`` at the top of the repository runs too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from drlpp.cli.command_line import build_console, end_with_report, resumable, run_program
from drlpp.cli.commands import add_command, keep_options, program
from drlpp.cli.learning.learning_job import Job, run_job
from drlpp.cli.learning.outcome import run_record
from drlpp.cli.settings import (
    MODEL,
    MethodSettings,
    ModelOptions,
    OptimizerSettings,
    RaceSettings,
    Resume,
    RunFolder,
    SearchSettings,
    Seed,
    WorkerSettings,
    model_reference,
)
from drlpp.errors import InvalidInput
from drlpp.exporting.layouts.cut_at import CutAt

console = build_console()


def learn(
    model: Annotated[str, MODEL] = "alexnet",
    model_option: ModelOptions = [],  # noqa: B006 - typer copies it
    *,
    agent: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="guided (planners and corrected costs), guided-policy (with a policy as well), "
            "drl-pp (the paper's), drl-pp-mended, or a YAML file of your own.",
        ),
    ] = "guided",
    budget: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of placements to measure, at most.")
    ] = 100,
    minibatches: Annotated[
        int,
        typer.Option(min=1, max=100_000, metavar="N", help="Minibatches of a measurement."),
    ] = 30,
    repetitions: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Runs that these minibatches are divided into."),
    ] = 3,
    finalists: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Measured placements in the final comparison."),
    ] = 4,
    rounds: Annotated[
        int, typer.Option(min=1, metavar="N", help="Rounds of the final comparison, at most.")
    ] = 7,
    search: SearchSettings,
    race: RaceSettings,
    method: MethodSettings,
    optimizer: OptimizerSettings,
    workers: WorkerSettings,
    out: RunFolder = None,
    resume: Resume = False,
    seed: Seed = 0,
) -> dict[str, Any]:
    """Learn the fastest placement of a model on live workers, and export it to runs/MODEL.

    With --data the fastest placements are then raced to a loss (drlpp race), which decides.
    """
    # Imported here, so that --help and errors in arguments do not wait for torch.
    from drlpp.agents import AGENTS, GuidedHyperparameters, hyperparameters_of
    from drlpp.capturing.capture import capture
    from drlpp.cli.layouts import layout_contenders
    from drlpp.exporting.layouts.module_cuts import contracted_at
    from drlpp.io.formatting import emulation_text
    from drlpp.io.run_folder import open_run_folder
    from drlpp.planners import Vary
    from drlpp.racing.rivals import RIVALS
    from drlpp.racing.to_loss import RaceData
    from drlpp.runtime import ClusterSession

    for option in ("target_loss", "epochs", "limit"):
        if getattr(race, option) is not None and race.data is None:
            name = option.replace("_", "-")
            raise InvalidInput(f"--{name} belongs to a race to a loss; give --data as well")
    race_options = race.options()
    hyperparameters = hyperparameters_of(agent)
    chosen = method.method()
    # What cannot vary is said before anything is measured.
    search.space(chosen, method)
    varied = search.varied(method)
    if varied and not isinstance(hyperparameters, GuidedHyperparameters):
        raise InvalidInput(
            f"agent {agent} chooses placements alone, as in the paper; leave out --vary, or take "
            "the guided agent"
        )
    spec = optimizer.spec()
    reference = model_reference(model, model_option)
    folder = out or Path("runs") / model.replace(":", "-").replace("/", "-")
    captured = capture(reference, seed=seed)
    race_data = None if race.data is None else RaceData(captured, race.data, seed, _tell)
    hosts = workers.hosts(folder)
    count, emulated = workers.emulation(hosts)
    layouts = layout_contenders(search.compare, captured, count, chosen)
    settings = {
        "model": reference.model_dump(),
        "workers": count,
        "speeds": emulated and list(emulated),
        "device": workers.device.value,
        # A file may have changed meanwhile, a name has not.
        "agent": agent if agent in AGENTS else hyperparameters.model_dump(),
        "minibatches": minibatches,
        "repetitions": repetitions,
        "method": chosen.model_dump(),
        "optimizer": spec.settings,
        "seed": seed,
    }
    contracted = None
    if search.cut_at is not CutAt.OPERATORS:
        contracted = contracted_at(search.cut_at, captured.graph, lambda: captured.task.module)
        settings["cut_at"] = search.cut_at.value
    if search.vary is not None or search.max_staleness is not None:
        settings |= {"vary": search.vary, "max_staleness": search.max_staleness}
    with (
        open_run_folder(folder, "drlpp learn", settings, resume=resume, note=_tell),
        resumable("run"),
    ):
        keep_options(folder)
        parameters = sum(parameter.numel() for parameter in captured.module.parameters())
        console.print(
            f"{reference}: {len(captured.graph)} operators, "
            f"{parameters:,} parameters; {count} workers; {chosen}"
        )
        if emulated:
            console.print(emulation_text(emulated), soft_wrap=True)
        if contracted is not None:
            divided = f"{len(contracted.graph)} {search.cut_at}"
            console.print(f"the agent cuts between {divided}; rivals between operators")
        if chosen.recomputation_text:
            console.print(chosen.recomputation_text, soft_wrap=True)
        name = Path(agent).stem
        job = Job(
            out=folder,
            agent=name if name not in RIVALS else f"agent {name}",
            hyperparameters=hyperparameters,
            budget=budget,
            minibatches=minibatches,
            repetitions=repetitions,
            finalists=finalists,
            rounds=rounds,
            seed=seed,
            vary=varied,
            asked_to_vary=search.vary is not None,
            most_staleness=search.max_staleness,
            chooses_microbatches="microbatches" not in method.options
            and Vary.MICROBATCHES not in (varied or ()),
            race_data=race_data,
            race_options=race_options,
            layouts=layouts,
            contracted=contracted,
        )
        with ClusterSession(
            captured,
            count,
            method=chosen,
            optimizer=spec,
            seed=seed,
            speeds=emulated,
            note=_tell,
            **workers.of_session(hosts),
        ) as session:
            run_job(job, session)
        end_with_report(console, folder)
    return run_record(folder)


def _tell(note: str) -> None:
    console.print(note, markup=False)


def main() -> None:
    """Run ``train_agent.py``."""
    app = program(add_completion=False)
    add_command(app, None, learn)
    run_program(app, "train_agent.py")
