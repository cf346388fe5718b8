"""``drlpp race``: time to loss of placements and plain PyTorch, on the user's own data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drlpp.cli.command_line import (
    MODEL_HELP,
    OPTIMIZER_HELP,
    ClusterOption,
    CompareOptions,
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
    shown,
)
from drlpp.cli.common_options import keep_options
from drlpp.cli.emulated_speeds import workers_and_speeds
from drlpp.cli.learning.named_candidates import (
    NAMED_POLICIES,
    named_methods,
    named_placements,
)
from drlpp.cli.learning.run_record import hosts_of_run, run_record
from drlpp.cli.show_command import end_with_report
from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import PIPEOPTIM
from drlpp.specs.device_choice import DeviceChoice

if TYPE_CHECKING:
    from rich.console import Console

    from drlpp.costs.profile import Profile
    from drlpp.placement.placement_file import PlacementFile
    from drlpp.racing.contenders import Contender
    from drlpp.racing.rivals import Grounds
    from drlpp.racing.to_loss import Course, RaceData, RaceOptions
    from drlpp.racing.training_race import RaceEnd, TrainingRace
    from drlpp.runtime import ClusterSession
    from drlpp.specs.cluster import Cluster


def race_model(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    data: Annotated[
        str,
        typer.Option(
            help="A name (digits), or package.module:factory, which returns samples or loaders."
        ),
    ] = "digits",
    target_loss: Annotated[float | None, typer.Option(help="The held-out loss to reach.")] = None,
    epochs: Annotated[
        int,
        typer.Option(
            min=1, help="Without it: race to the loss of plain PyTorch after this many epochs."
        ),
    ] = 3,
    limit: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            metavar="SECONDS",
            help="Stop every candidate after this many seconds of training (default: 600, or 5× "
            "plain PyTorch).",
        ),
    ] = None,
    placement: Annotated[
        list[Path],
        typer.Option(help="Also race this placement.json; may be repeated."),
    ] = [],  # noqa: B006 - typer copies it
    compare: CompareOptions = [],  # noqa: B006
    policy: Annotated[
        list[str],
        typer.Option(
            help=f"Takes part beside {PIPEOPTIM.name} and schedules that flush, on the same "
            f"pipelines: {', '.join(NAMED_POLICIES)}; may be repeated.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    workers: Annotated[
        int | None, typer.Option(min=1, help="4, or all that --cluster has.")
    ] = None,
    speeds: SpeedsOption = None,
    optimizer: Annotated[str, typer.Option(help=f"{OPTIMIZER_HELP}.")] = "adam",
    lr: Annotated[
        float | None, typer.Option(help="Middle of the learning rates that are tried.")
    ] = None,
    optimizer_option: OptimizerOptions = [],  # noqa: B006
    parameter_group: GroupOptions = [],  # noqa: B006
    method_option: MethodOptions = [],  # noqa: B006
    rates: Annotated[
        int,
        typer.Option(min=1, help="Number of learning rates to try for each candidate, √10 apart."),
    ] = 3,
    finals: Annotated[
        int,
        typer.Option(
            min=1, help="Number of trainings of each finalist, in different orders of samples."
        ),
    ] = 3,
    halving: Annotated[
        bool,
        typer.Option(help="Stop candidates that fall behind; otherwise all train to the target."),
    ] = True,
    evaluate_every: Annotated[
        int | None,
        typer.Option(min=1, help="Minibatches between evaluations (default: a fifth of an epoch)."),
    ] = None,
    size: SizeOption = Size.SMALL,
    model_option: ModelOptions = [],  # noqa: B006
    device: DeviceOption = DeviceChoice.AUTO,
    cluster: ClusterOption = None,
    hosts: HostsOption = None,
    timeout: TimeoutOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for everything found; else races/MODEL.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the race in --out, if it has begun.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, order of samples, dropout.")] = 0,
) -> dict[str, Any]:
    """Train candidates in turns on your data, plain PyTorch among them, until one is first."""
    from drlpp.capturing.capture import capture
    from drlpp.cli.learning.layouts import layout_contenders
    from drlpp.io.run_folder import open_run_folder
    from drlpp.placement.placement_file import read_placement
    from drlpp.racing.to_loss import RaceData, RaceOptions
    from drlpp.runtime import ClusterSession, load_or_measure_profile
    from drlpp.schedule.per_stage import refuse_lists
    from drlpp.specs.optimizer_spec import OptimizerSpec

    options = RaceOptions(target_loss, epochs, evaluate_every, rates, finals, limit, halving)
    console = build_console()
    method, methods = named_methods(policy, read_options(method_option, "method", "accumulate=4"))
    refuse_lists(method.in_flight_per_link, method.recompute)
    spec = OptimizerSpec.parse(
        optimizer,
        parameter_groups(parameter_group),
        **optimizer_options(optimizer_option, lr),
    )
    reference = model_reference(model, size, model_option)
    captured = capture(reference, seed=seed)
    documents = [read_placement(path) for path in placement]
    race_data = RaceData(captured, data, seed, lambda note: console.print(note))
    folder = out or Path("races") / model.replace(":", "-").replace("/", "-")
    wanted = hosts_of_run(hosts, cluster, folder)
    workers, emulated = workers_and_speeds(workers, speeds, device, cluster, wanted)
    layouts = layout_contenders(compare, captured, workers, method)
    settings = {
        "model": reference.model_dump(),
        "data": data,
        "workers": workers,
        "speeds": emulated and list(emulated),
        "device": device.value,
        "method": method.model_dump(),
        "optimizer": spec.settings,
        "placements": [_told(document) for document in documents],
        "seed": seed,
    }
    # What a race began without, it may continue with.
    if methods:
        settings["policies"] = [method.model_dump() for method in methods]
    if layouts:
        settings["layouts"] = [layout.model_dump(mode="json") for layout in layouts.values()]
    with (
        open_run_folder(folder, "drlpp race", settings, resume=resume, note=console.print),
        resumable("race"),
        ClusterSession(
            captured,
            workers,
            method=method,
            optimizer=spec,
            seed=seed,
            timeout_seconds=timeout,
            speeds=emulated,
            device=device,
            cluster=cluster,
            hosts=wanted,
            note=console.print,
        ) as session,
    ):
        keep_options(folder)
        with shown(console, "profiling operators and links"):
            profile, measured = load_or_measure_profile(session, folder)
        named = [*named_placements(session, documents), *layouts.values()]
        run_and_report(
            console,
            session,
            profile,
            measured,
            named,
            race_data,
            folder,
            options,
            methods=methods,
        )
        end_with_report(console, folder)
    return run_record(folder)


def _told(document: PlacementFile) -> dict[str, Any]:
    """Return what tells a placement from others in the settings of a race."""
    of_it = {"graph_fingerprint", "stages", "method", "found_by"}
    return document.model_dump(mode="json", include=of_it)


def run_and_report(
    console: Console,
    session: ClusterSession,
    profile: Profile,
    cluster: Cluster,
    named: list[Contender],
    data: RaceData,
    folder: Path,
    options: RaceOptions,
    *,
    methods: Sequence[Method] = (),
) -> tuple[Course, RaceEnd]:
    """Run a race, or continue it; print its table and write its picture and the winner's training.

    Args:
        console: to print on.
        session, profile, cluster: the workers, and what is known of the model and of them.
        named: what takes part besides what a user has anyway.
        data: to train and evaluate on.
        folder: for everything found.
        options: what wins.
        methods: of weight policies that take part too.

    Raises:
        HostLost: a host is lost; the race can be continued when it is back.
    """
    from drlpp.cli.showing.race_report import draw_race, race_table
    from drlpp.planners import Space
    from drlpp.racing.rivals import Grounds
    from drlpp.racing.to_loss import race_to_loss
    from drlpp.racing.training_race import race_lines
    from drlpp.racing.winner import keep_winner
    from drlpp.reporting.board import write_training_race

    with shown(console, "choosing what takes part") as tell:
        begun = _begun(folder)
        grounds = Grounds(session, profile, cluster, Space(session.method))
        candidates = _candidates(grounds, named, begun, methods)
        course, end = race_to_loss(session, candidates, data, folder, options, on_step=tell)
    write_training_race(folder, course.race)
    console.print(race_table(course.race, end))
    for line in race_lines(course.race, end):
        console.print(line, soft_wrap=True)
    console.print(f"picture: {draw_race(course.race, end, folder / 'race.png')}", soft_wrap=True)
    if end.winner is not None:
        _, how = keep_winner(course, end, cluster)
        console.print(how, soft_wrap=True)
    return course, end


def _begun(folder: Path) -> TrainingRace | None:
    """Return the race that the folder has begun."""
    from drlpp.io.documents import read_document
    from drlpp.racing.to_loss import FILE_NAME
    from drlpp.racing.training_race import TrainingRace

    path = folder / FILE_NAME
    return read_document(path, TrainingRace) if path.exists() else None


def _candidates(
    grounds: Grounds,
    named: list[Contender],
    begun: TrainingRace | None,
    methods: Sequence[Method],
) -> list[Contender]:
    """Return what takes part: what has begun, or the usual candidates; then what is named."""
    from drlpp.racing.candidates import usual_candidates, with_policy
    from drlpp.racing.contenders import without_equals

    # Which threads suit plain PyTorch best, and how many workers data parallelism, is measured, and
    # may come out otherwise again.
    known = list(begun.candidates) if begun else usual_candidates(grounds)
    found = [*known, *(one for method in methods for one in with_policy(grounds, method)), *named]
    keys = {one.key for one in known}
    return known + [one for one in without_equals(found) if one.key not in keys]
