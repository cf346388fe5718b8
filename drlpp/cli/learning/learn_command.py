"""``drlpp learn``: learn a placement on live workers, race it against its rivals, export the best.

The main job, which ``train_agent.py`` at the top of the repository runs too.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from drlpp.cli.command_line import (
    MODEL_HELP,
    OPTIMIZER_HELP,
    POLICY_HELP,
    ClusterOption,
    CompareOptions,
    CutAtOption,
    DeviceOption,
    GroupOptions,
    HostsOption,
    MethodOptions,
    ModelOptions,
    OptimizerOptions,
    Size,
    SizeOption,
    SpeedsOption,
    TimeoutOption,
    build_console,
    model_reference,
    optimizer_options,
    parameter_groups,
    read_options,
    resumable,
    run_program,
)
from drlpp.cli.common_options import add_command, keep_options
from drlpp.cli.emulated_speeds import workers_and_speeds
from drlpp.cli.learning.learning_job import Job, run_job
from drlpp.cli.learning.run_record import hosts_of_run, run_record
from drlpp.cli.show_command import end_with_report
from drlpp.errors import InvalidInput
from drlpp.exporting.layouts.cut_at import CutAt
from drlpp.schedule.weight_policies import PIPEOPTIM
from drlpp.specs.device_choice import DeviceChoice

console = build_console()


class Objective(StrEnum):
    """What the best placement is best at."""

    TIME_PER_MINIBATCH = "time-per-minibatch"
    TIME_TO_LOSS = "time-to-loss"


def learn(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)] = "alexnet",
    size: SizeOption = Size.SMALL,
    model_option: ModelOptions = [],  # noqa: B006 - typer copies it
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Worker processes, each one accelerator; 4, or all that --cluster has.",
        ),
    ] = None,
    speeds: SpeedsOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for everything found; else runs/MODEL.")
    ] = None,
    agent: Annotated[
        str,
        typer.Option(
            help="guided by planners and corrected costs; guided-policy: with a policy that "
            "practises as well; drl-pp: the paper's; drl-pp-mended: with switches against its "
            "collapses; tuned: the paper's for small budgets; or a YAML file of your own."
        ),
    ] = "guided",
    budget: Annotated[
        int, typer.Option(min=1, help="Distinct placements to measure, at most.")
    ] = 100,
    vary: Annotated[
        str | None,
        typer.Option(
            help="What the agent may choose with the placement, of depth, microbatches, "
            "recompute, schedule; or none.",
            show_default="depth, where the schedule has one, for the guided agent; none for others",
        ),
    ] = None,
    max_staleness: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Likewise, the largest staleness of a stage; without --vary by default that of a "
            "pipeline over all accelerators.",
        ),
    ] = None,
    minibatches: Annotated[
        int, typer.Option(min=1, max=100_000, help="Minibatches of a measurement.")
    ] = 30,
    repetitions: Annotated[
        int,
        typer.Option(
            min=1,
            help="Runs, in turns with others, that a measurement's minibatches are divided in.",
        ),
    ] = 3,
    finalists: Annotated[
        int, typer.Option(min=1, help="Measured placements in the final comparison.")
    ] = 4,
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds of the final comparison, at most.")
    ] = 7,
    policy: Annotated[
        str | None, typer.Option(help=f"{POLICY_HELP}.", show_default=PIPEOPTIM.name)
    ] = None,
    method_option: MethodOptions = [],  # noqa: B006 - typer copies it
    optimizer: Annotated[str, typer.Option(help=f"{OPTIMIZER_HELP}.")] = "adam",
    lr: Annotated[float | None, typer.Option(help="Learning rate of the optimizer.")] = None,
    optimizer_option: OptimizerOptions = [],  # noqa: B006 - typer copies it
    parameter_group: GroupOptions = [],  # noqa: B006
    seed: Annotated[int, typer.Option(min=0, help="Of the agent and the model's weights.")] = 0,
    device: DeviceOption = DeviceChoice.AUTO,
    cluster: ClusterOption = None,
    hosts: HostsOption = None,
    timeout: TimeoutOption = None,
    objective: Annotated[
        Objective,
        typer.Option(
            help="time-to-loss also trains the fastest placements on --data, in a race with plain "
            "PyTorch (drlpp race).",
        ),
    ] = Objective.TIME_PER_MINIBATCH,
    data: Annotated[
        str | None,
        typer.Option(help="For time-to-loss: a name (digits), or package.module:factory."),
    ] = None,
    target_loss: Annotated[
        float | None,
        typer.Option(help="For time-to-loss: the held-out loss to reach."),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="For time-to-loss without --target-loss: race to the loss of plain PyTorch after "
            "this many epochs.",
            show_default="3",
        ),
    ] = None,
    limit: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            metavar="SECONDS",
            help="For time-to-loss: stop every candidate after this many seconds of training "
            "(default: 600, or 5× plain PyTorch).",
        ),
    ] = None,
    cut_at: CutAtOption = CutAt.OPERATORS,
    compare: CompareOptions = [],  # noqa: B006
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out, if it has begun.")
    ] = False,
) -> dict[str, Any]:
    """Learn the fastest placement of a model on live workers, and export it."""
    # Imported here, so that --help and errors in arguments do not wait for torch.
    from drlpp.agents import AGENTS, hyperparameters_of
    from drlpp.capturing.capture import capture
    from drlpp.cli.learning.layouts import layout_contenders
    from drlpp.exporting.layouts.module_cuts import contracted_at
    from drlpp.io.formatting import emulation_text
    from drlpp.io.run_folder import open_run_folder
    from drlpp.planners import Space, Vary, read_vary
    from drlpp.racing.rivals import RIVALS
    from drlpp.racing.to_loss import RaceData, RaceOptions
    from drlpp.runtime import ClusterSession
    from drlpp.schedule.method_choice import choose_method
    from drlpp.specs.optimizer_spec import OptimizerSpec

    if (objective is Objective.TIME_TO_LOSS) != (data is not None):
        raise InvalidInput("--objective time-to-loss and --data belong together; give both")
    goal = {"target-loss": target_loss, "epochs": epochs, "limit": limit}
    for option in goal:
        if goal[option] is not None and data is None:
            raise InvalidInput(f"--{option} belongs to --objective time-to-loss; give that as well")
    race_options = RaceOptions(target_loss, epochs or 3, limit_seconds=limit)
    hyperparameters = hyperparameters_of(agent)
    options = read_options(method_option, "method", "accumulate=4")
    method = choose_method(policy, options)
    varied = None if vary is None else read_vary(vary)
    if varied is None and "in_flight_per_link" in options:
        varied = frozenset()
    # What cannot vary is said before anything is measured.
    Space(method, varied, max_staleness)
    optimizer_spec = OptimizerSpec.parse(
        optimizer,
        parameter_groups(parameter_group),
        **optimizer_options(optimizer_option, lr),
    )
    reference = model_reference(model, size, model_option)
    folder = out or Path("runs") / model.replace(":", "-").replace("/", "-")
    captured = capture(reference, seed=seed)
    race_data = None if data is None else RaceData(captured, data, seed, _tell)
    wanted = hosts_of_run(hosts, cluster, folder)
    workers, emulated = workers_and_speeds(workers, speeds, device, cluster, wanted)
    layouts = layout_contenders(compare, captured, workers, method)
    settings = {
        "model": reference.model_dump(),
        "workers": workers,
        "speeds": emulated and list(emulated),
        "device": device.value,
        # A file may have changed meanwhile, a name has not.
        "agent": agent if agent in AGENTS else hyperparameters.model_dump(),
        "minibatches": minibatches,
        "repetitions": repetitions,
        "method": method.model_dump(),
        "optimizer": optimizer_spec.settings,
        "seed": seed,
    }
    contracted = None
    if cut_at is not CutAt.OPERATORS:
        contracted = contracted_at(cut_at, captured.graph, lambda: captured.task.module)
        settings["cut_at"] = cut_at.value
    if vary is not None or max_staleness is not None:
        settings |= {"vary": vary, "max_staleness": max_staleness}
    with (
        open_run_folder(folder, "drlpp learn", settings, resume=resume, note=_tell),
        resumable("run"),
    ):
        keep_options(folder)
        parameters = sum(parameter.numel() for parameter in captured.module.parameters())
        console.print(
            f"{reference}: {len(captured.graph)} operators, "
            f"{parameters:,} parameters; {workers} workers; {method}"
        )
        if emulated:
            console.print(emulation_text(emulated), soft_wrap=True)
        if contracted is not None:
            divided = f"{len(contracted.graph)} {cut_at}"
            console.print(f"the agent cuts between {divided}; rivals between operators")
        if method.recomputation_text:
            console.print(method.recomputation_text, soft_wrap=True)
        job = Job(
            out=folder,
            agent=name if (name := Path(agent).stem) not in RIVALS else f"agent {name}",
            hyperparameters=hyperparameters,
            budget=budget,
            minibatches=minibatches,
            repetitions=repetitions,
            finalists=finalists,
            rounds=rounds,
            seed=seed,
            vary=varied,
            asked_to_vary=vary is not None,
            most_staleness=max_staleness,
            chooses_microbatches="microbatches" not in options
            and Vary.MICROBATCHES not in (varied or ()),
            race_data=race_data,
            race_options=race_options,
            layouts=layouts,
            contracted=contracted,
        )
        with ClusterSession(
            captured,
            workers,
            method=method,
            optimizer=optimizer_spec,
            seed=seed,
            timeout_seconds=timeout,
            speeds=emulated,
            device=device,
            cluster=cluster,
            hosts=wanted,
            note=_tell,
        ) as session:
            run_job(job, session)
        end_with_report(console, folder)
    return run_record(folder)


def _tell(note: str) -> None:
    console.print(note, markup=False)


def main() -> None:
    """Run ``train_agent.py``."""
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    add_command(app, None, learn, by_name="model", quiet=True, as_json=True)
    run_program(app, "train_agent.py")
