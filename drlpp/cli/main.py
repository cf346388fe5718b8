"""The command line ``drlpp``: learn a placement, train with it, capture a model, show any file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drlpp.cli.command_line import (
    OPTIMIZER_HELP,
    POLICY_HELP,
    ClusterOption,
    DeviceOption,
    GroupOptions,
    MethodOptions,
    ModelOptions,
    OptimizerOptions,
    SameModelOption,
    SpeedsOption,
    TimeoutOption,
    optimizer_options,
    parameter_groups,
    read_options,
    run_program,
    same_model,
)
from drlpp.cli.common_options import add_command, training_folder
from drlpp.cli.emulated_speeds import emulated_speeds
from drlpp.cli.export_command import export_placement
from drlpp.cli.learning.learn_command import learn
from drlpp.cli.learning.race_command import race_model
from drlpp.cli.planning.planning_commands import plan_placement, profile_model
from drlpp.cli.show_command import show
from drlpp.errors import InvalidInput
from drlpp.specs.device_choice import DeviceChoice

if TYPE_CHECKING:
    from drlpp.capturing.capture import CapturedModel
    from drlpp.models.model_reference import ModelReference
    from drlpp.placement.placement_file import PlacementFile

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_versions(asked: bool) -> None:
    if asked:
        from drlpp.placement.placement_file import Versions

        versions = Versions.current()
        typer.echo(f"drlpp {versions.drlpp}, torch {versions.torch}, Python {versions.python}")
        raise typer.Exit


@app.callback()
def _begin(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_versions, is_eager=True, help="Show versions, and exit."
        ),
    ] = False,
) -> None:
    """Find the fastest pipeline placement of a PyTorch model, and train with it."""


def train(
    placement: Annotated[Path, typer.Argument(help="A placement.json.", is_eager=True)],
    model: SameModelOption = None,
    model_option: ModelOptions = [],  # noqa: B006 - typer copies it
    data: Annotated[
        str,
        typer.Option(
            help="A name (digits), or package.module:factory, which returns samples or loaders.",
            is_eager=True,
        ),
    ] = "digits",
    epochs: Annotated[int, typer.Option(help="How often all samples are seen.")] = 5,
    minibatches: Annotated[
        int | None,
        typer.Option(help="Of an epoch, where a loader gives more or never ends; else all."),
    ] = None,
    policy: Annotated[str | None, typer.Option(help=f"{POLICY_HELP}; else as measured.")] = None,
    method_option: MethodOptions = [],  # noqa: B006 - typer copies it
    optimizer: Annotated[
        str | None, typer.Option(help=f"{OPTIMIZER_HELP}; else as measured.")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    optimizer_option: OptimizerOptions = [],  # noqa: B006
    parameter_group: GroupOptions = [],  # noqa: B006
    lr_schedule: Annotated[
        str | None,
        typer.Option(help="A scheduler of torch, like cosineannealing, or package.module:Class."),
    ] = None,
    lr_schedule_option: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=VALUE",
            help="T_max=10 and the like; interval=minibatch to count minibatches instead of "
            "epochs; warm_up=100 minibatches of linear increase; may be repeated.",
        ),
    ] = [],  # noqa: B006
    synchronous_epochs: Annotated[
        int, typer.Option(help="Epochs at the beginning that flush before every update.")
    ] = 0,
    checkpoint_every: Annotated[
        int, typer.Option(help="Minibatches between checkpoints within an epoch; 0 for none.")
    ] = 0,
    checkpoints: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER|URL",
            help="That all hosts share, where each writes its parts; else a file in --out.",
        ),
    ] = None,
    early_stopping: Annotated[
        int | None,
        typer.Option(
            help="Epochs in a row without a better held-out score (or loss) to end after."
        ),
    ] = None,
    early_stopping_option: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=VALUE",
            help="min_delta=0.001, what counts as better; monitor=loss or score; may be repeated.",
        ),
    ] = [],  # noqa: B006
    workers: Annotated[
        int | None,
        typer.Option(
            help="Another number than the placement is for: planned for these instead.",
            is_eager=True,
        ),
    ] = None,
    elastic: Annotated[
        str | None,
        typer.Option(
            metavar="MIN:MAX",
            help="Continue with as many workers as there are when some are lost for good, and with "
            "more again when they return.",
        ),
    ] = None,
    speeds: SpeedsOption = None,
    device: DeviceOption = DeviceChoice.AUTO,
    cluster: ClusterOption = None,
    timeout: TimeoutOption = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for results; else 'training' next to PLACEMENT.", is_eager=True),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            is_eager=True,
            help="Continue from the checkpoint, if any, with the run's own options where they are "
            "not given.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Of weights, order of samples and dropout.")] = 0,
) -> dict[str, Any]:
    """Train the model of a placement with that placement, and evaluate it on held-out data."""
    from drlpp.cli.training.replanning import placement_for
    from drlpp.cli.training.training_report import train_and_report
    from drlpp.placement.placement_file import read_placement
    from drlpp.planners.replanning import Elastic
    from drlpp.runtime import EarlyStopping
    from drlpp.schedule.method_choice import choose_method
    from drlpp.specs.learning_rate import LearningRateSchedule

    folder = training_folder(placement, out)
    given_model = same_model(model, model_option)
    document = read_placement(placement, model=given_model)
    method_options = read_options(method_option, "method", "accumulate=4")
    schedule_options = read_options(lr_schedule_option, "schedule", "T_max=10")
    if schedule_options and lr_schedule is None:
        raise InvalidInput("options of a learning-rate schedule need its name: --lr-schedule")
    stopping_options = read_options(early_stopping_option, "early stopping", "min_delta=0.001")
    if stopping_options and early_stopping is None:
        raise InvalidInput("options of early stopping need its patience: --early-stopping")
    if elastic is not None and workers is not None:
        raise InvalidInput("--elastic MIN:MAX says how many workers there are; leave out --workers")
    document = document.model_copy(
        update={
            "method": choose_method(policy, method_options, document.method),
            "optimizer": document.optimizer.changed(
                optimizer,
                optimizer_options(optimizer_option, lr),
                parameter_groups(parameter_group),
            ),
        }
    )
    given: Path | PlacementFile = placement
    to_train: CapturedModel | ModelReference | str | None = given_model
    if workers not in (None, document.cluster.accelerators):
        given, to_train = placement_for(workers, placement, document, seed)
        document, workers = given, None
    return train_and_report(
        given,
        document,
        data=data,
        epochs=epochs,
        minibatches=minibatches,
        model=to_train,
        method=document.method,
        optimizer=document.optimizer,
        learning_rate=LearningRateSchedule.parse(lr_schedule, **schedule_options)
        if lr_schedule is not None
        else None,
        synchronous_epochs=synchronous_epochs,
        checkpoint_every=checkpoint_every,
        checkpoints=checkpoints,
        early_stopping=EarlyStopping.parse(early_stopping, **stopping_options)
        if early_stopping is not None
        else None,
        workers=workers,
        elastic=None if elastic is None else Elastic.parse(elastic),
        speeds=emulated_speeds(speeds, workers),
        device=device,
        cluster=cluster,
        timeout_seconds=timeout,
        out=folder,
        resume=resume,
        seed=seed,
    )


add_command(app, "learn", learn, by_name="model", quiet=True, as_json=True)
add_command(app, "race", race_model, quiet=True, as_json=True)
add_command(app, "profile", profile_model, quiet=True, as_json=True)
add_command(app, "plan", plan_placement, quiet=True)
add_command(app, "export", export_placement, quiet=True, as_json=True)
add_command(app, "show", show, as_json=True)
add_command(app, "train", train, quiet=True, as_json=True)


def main() -> None:
    """Run the installed command."""
    run_program(app, "drlpp")
