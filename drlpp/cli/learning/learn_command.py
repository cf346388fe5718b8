"""``drlpp learn``: learn a placement on live workers, race it against its rivals, export the best.

The main job, which ``train_agent.py`` at the top of the repository runs too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from drlpp.cli.command_line import console, end_with_report, resumable, run_program
from drlpp.cli.commands import add_command, keep_options, program
from drlpp.cli.learning.learning_job import LearningJob, MeasuringSettings
from drlpp.cli.learning.outcome import run_record
from drlpp.cli.settings import (
    MODEL,
    MethodSettings,
    ModelOptions,
    OptimizerSettings,
    RaceSettings,
    RunSettings,
    SearchSettings,
    WorkerSettings,
    model_reference,
    option,
)
from drlpp.errors import InvalidInput
from drlpp.exporting.layouts.cut_at import CutAt


def learn(
    model: Annotated[str, MODEL] = "alexnet",
    model_option: ModelOptions = [],  # noqa: B006 - typer copies it
    *,
    agent: Annotated[
        str,
        option(
            "guided (planners and corrected costs), guided-policy (with a policy as well), "
            "drl-pp (the paper's), drl-pp-mended, or a YAML file of your own.",
            "NAME",
        ),
    ] = "guided",
    measuring: MeasuringSettings,
    search: SearchSettings,
    race: RaceSettings,
    method: MethodSettings,
    optimizer: OptimizerSettings,
    workers: WorkerSettings,
    run: RunSettings,
) -> dict[str, Any]:
    """Learn the fastest placement of a model on live workers, and export it to runs/MODEL.

    With --data the fastest placements are then raced to a loss (drlpp race), which decides.
    """
    from drlpp.agents import AGENTS, GuidedHyperparameters, hyperparameters_of
    from drlpp.capturing.capture import capture
    from drlpp.cli.layouts import layout_contenders
    from drlpp.exporting.layouts.module_cuts import contracted_at
    from drlpp.io.formatting import emulation_text
    from drlpp.io.run_folder import open_run_folder
    from drlpp.racing.rivals import RIVALS
    from drlpp.racing.to_loss import RaceData
    from drlpp.runtime import ClusterSession

    for name in ("target_loss", "epochs", "limit"):
        if getattr(race, name) is not None and race.data is None:
            raise InvalidInput(
                f"--{name.replace('_', '-')} belongs to a race to a loss; give --data as well"
            )
    hyperparameters = hyperparameters_of(agent)
    chosen, spec = method.method(), optimizer.spec()
    # What cannot vary is said before anything is measured.
    search.space(chosen, method)
    if search.varied(method) and not isinstance(hyperparameters, GuidedHyperparameters):
        raise InvalidInput(
            f"agent {agent} chooses placements alone, as in the paper; leave out --vary, or take "
            "the guided agent"
        )
    reference = model_reference(model, model_option)
    folder = run.folder("runs", model)
    captured = capture(reference, seed=run.seed)
    data = None if race.data is None else RaceData(captured, race.data, run.seed, console.print)
    of_session = workers.of_session(folder)
    count, emulated = of_session["workers"], of_session["speeds"]
    # Nor what is no layout.
    layout_contenders(search.compare, captured, count, chosen)
    settings = {
        "model": reference.model_dump(),
        "workers": count,
        "speeds": emulated and list(emulated),
        "device": workers.device.value,
        # A file may have changed meanwhile, a name has not.
        "agent": agent if agent in AGENTS else hyperparameters.model_dump(),
        "minibatches": measuring.minibatches,
        "repetitions": measuring.repetitions,
        "method": chosen.model_dump(),
        "optimizer": spec.settings,
        "seed": run.seed,
    }
    contracted = None
    if search.cut_at is not CutAt.OPERATORS:
        contracted = contracted_at(search.cut_at, captured.graph, lambda: captured.task.module)
        settings["cut_at"] = search.cut_at.value
    if search.vary is not None or search.max_staleness is not None:
        settings |= {"vary": search.vary, "max_staleness": search.max_staleness}
    with (
        open_run_folder(folder, "drlpp learn", settings, resume=run.resume, note=console.print),
        resumable("run"),
    ):
        keep_options(folder)
        parameters = sum(parameter.numel() for parameter in captured.module.parameters())
        console.print(
            f"{reference}: {len(captured.graph)} operators, "
            f"{parameters:,} parameters; {count} workers; {chosen}"
        )
        if emulated:
            console.print(emulation_text(emulated))
        if contracted is not None:
            divided = f"{len(contracted.graph)} {search.cut_at}"
            console.print(f"the agent cuts between {divided}; rivals between operators")
        if chosen.recomputation_text:
            console.print(chosen.recomputation_text)
        with ClusterSession(
            captured,
            method=chosen,
            optimizer=spec,
            seed=run.seed,
            note=console.print,
            **of_session,
        ) as session:
            LearningJob(
                session,
                folder,
                name if (name := Path(agent).stem) not in RIVALS else f"agent {name}",
                hyperparameters,
                measuring,
                search,
                method,
                contracted,
                data,
                race.options,
            ).run()
        end_with_report(folder)
    return run_record(folder)


def main() -> None:
    """Run ``train_agent.py``."""
    app = program(add_completion=False)
    add_command(app, None, learn)
    run_program(app, "train_agent.py")
