"""``drlpp race``: time to loss of placements and plain PyTorch, on the user's own data.

Also how a run of ``drlpp learn`` or ``drlpp race`` begins, and what it ends with.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.cli.arguments import Learn, Race
from drlpp.cli.command_line import console, resumable
from drlpp.cli.commands import keep_options
from drlpp.cli.layouts import layout_contenders
from drlpp.cli.settings import model_reference
from drlpp.errors import InvalidInput
from drlpp.io.documents import read_document
from drlpp.io.progress_lines import shown
from drlpp.io.run_folder import open_run_folder
from drlpp.planners import Space
from drlpp.racing.contenders import Contender, compiled_as_plain
from drlpp.racing.plain import MODULE_CHECKPOINT
from drlpp.racing.prospects import pipelines, usual_candidates, with_a_chance
from drlpp.racing.rivals import Grounds, without_equals
from drlpp.racing.to_loss import FILE_NAME, Course, RaceData, export, race_to_loss
from drlpp.racing.training_race import RaceEnd, TrainingRace
from drlpp.report.tables import race_table
from drlpp.runtime import ClusterSession, load_or_measure_profile
from drlpp.schedule.per_stage import refuse_lists
from drlpp.specs.cluster import Cluster
from drlpp.specs.data import OWN_DATA, fitting_data


def race(given: Race) -> dict[str, Any]:
    """Run ``drlpp race``."""
    method = given.method.method()
    refuse_lists(method.in_flight_per_link, method.recompute)
    spec, seed = given.optimizer.spec(), given.run.seed
    captured = capture(model_reference(given.model, given.model_option), seed=seed)
    data = RaceData(captured, given.race.data or "digits", seed, console.print)
    folder = given.run.folder("races", given.model)
    of_session = {**given.workers.of_session(folder), "method": method, "optimizer": spec}
    layouts = layout_contenders(given.compare, captured, of_session["workers"], method)
    settings: dict[str, Any] = {"data": data.name}
    # What a race began without, it may continue with.
    if layouts:
        settings["placements"] = [layout.model_dump(mode="json") for layout in layouts]
    with live_run("race", given, captured, folder, of_session, settings) as session:
        with shown(console, "profiling operators and links"):
            known = load_or_measure_profile(session, folder)
        grounds = Grounds(session, *known, Space(method))
        # A policy that is named trains, whatever is expected of it.
        own = [] if given.method.policy is None else pipelines(grounds, method)
        if given.method.policy is not None and not own:
            for candidate in grounds.placed("gpipe", method, [2]):
                # Says why it cannot be run.
                session.plan(candidate)
            raise InvalidInput(
                f"policy {method.policy} cannot take part in this race: a pipeline needs two "
                "accelerators with enough memory, and two operators"
            )
        rules = given.race.options | {"rates": given.rates, "finals": given.repetitions}
        course, end = run_and_report(grounds, [*own, *layouts], data, folder, rules)
        export_winner(folder, (), course, end, grounds.cluster)
    return {"folder": str(folder)}


def run_and_report(
    grounds: Grounds,
    named: Sequence[Contender],
    data: RaceData,
    folder: Path,
    options: Mapping[str, Any],
) -> tuple[Course, RaceEnd]:
    """Run a race, or continue it, and print its table.

    Args:
        grounds: the workers, and what is known of the model and of them.
        named: what takes part besides what a user has anyway.
        data: to train and evaluate on.
        folder: for everything found.
        options: of :func:`~drlpp.racing.to_loss.race_to_loss`: what wins, and how it is run.
    """
    with shown(console, "choosing what takes part") as tell:
        candidates = _candidates(grounds, named, folder)
        course, end = race_to_loss(
            grounds.session, candidates, data, folder, on_step=tell, **options
        )
    console.print(race_table(course.race, end))
    for line in end.lines():
        console.print(line)
    return course, end


def _candidates(grounds: Grounds, named: Sequence[Contender], folder: Path) -> list[Contender]:
    """Return what takes part: what has begun, or the usual candidates; then what is named."""
    path = folder / FILE_NAME
    # Which threads suit plain PyTorch best, and how many workers data parallelism, is measured, and
    # may come out otherwise again.
    if path.exists():
        known = list(read_document(path, TrainingRace).candidates)
    else:
        known, line = with_a_chance(grounds, usual_candidates(grounds), named)
        if line:
            console.print(line)
    found = compiled_as_plain([*known, *named])
    alike = without_equals(found, grounds.cluster)
    if not path.exists():
        return alike
    # Those of a file stay as they are.
    known = found[: len(known)]
    keys = {one.key for one in known}
    return known + [one for one in alike if one.key not in keys]


@contextmanager
def live_run(
    what: str,
    given: Learn | Race,
    captured: CapturedModel,
    folder: Path,
    of_session: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> Iterator[ClusterSession]:
    """Claim the folder of a run, and lend its workers to the block; then write its page.

    Args:
        what: ``run`` or ``race``, for what is said of it.
        given: what the command was given.
        captured: the model.
        folder: of the run.
        of_session: a session's arguments: workers, method, optimizer.
        settings: further ones that a run that is resumed has to have.
    """
    speeds, links = of_session["speeds"], of_session["links"]
    known = {
        "model": captured.reference.model_dump(),
        "workers": of_session["workers"],
        "speeds": speeds and list(speeds),
        "device": given.workers.device.value,
        "method": of_session["method"].model_dump(),
        "optimizer": of_session["optimizer"].settings,
        "seed": given.run.seed,
        **({} if links is None else {"links": links.model_dump(mode="json")}),
        **settings,
    }
    command = f"drlpp {'learn' if what == 'run' else what}"
    with (
        open_run_folder(folder, command, known, resume=given.run.resume, note=console.print),
        resumable(what),
    ):
        keep_options(folder)
        seed, note = given.run.seed, console.print
        with ClusterSession(captured, seed=seed, note=note, **of_session) as session:
            yield session
        try:
            from drlpp.report.page import write_report

            console.print(f"report: {write_report(folder)}")
        except Exception as error:
            # The run itself is done; nothing about a page may turn that into a failure.
            console.print(f"no report could be written: {error}")


def export_winner(
    folder: Path, measured: Sequence[Contender], course: Course, end: RaceEnd, cluster: Cluster
) -> None:
    """Write the placement that won the race, with its learning rate; say how to train.

    Args:
        folder: for ``placement.json``, which after learning holds the best of its race.
        measured: contenders by seconds, which may have measured the winner.
        course, end: the race.
        cluster: whose accelerators are the session's workers.
    """
    session, training, path = course.session, end.winning, folder / "placement.json"
    before = path.exists()
    if training is None:
        stays = f"; until then {path} is the best of the race before" if before else ""
        console.print(f"a longer race continues this one (--limit with --resume){stays}")
        return
    won, kept = course.candidate_of(training), course.folder_of(training)
    if won.candidate is None:
        console.print(f"its weights so far: {kept / MODULE_CHECKPOINT} ('model')")
    else:
        alike = (one.measurements for one in measured if one.key == won.key)
        won = won.model_copy(update={"measurements": next(alike, ())})
        export(session, won, cluster, folder, course.optimizer_of(training))
        console.print(
            f"exported to {path}: {won.beside(session.method)}, found by {won.found_by}, the "
            f"winner of the race, with learning rate {training.rate:.3g}; its weights so far: "
            f"drlpp export {shlex.quote(str(kept))} --to weights -o model.safetensors"
        )
    if end.verdict is None or not end.verdict.is_torch_as_good:
        say_how_to_train(session, path, course.race.data)
    elif before or won.candidate is not None:
        use = end.verdict.contenders[end.verdict.equals[0]].as_torch_has_it
        console.print(f"use {use}, as the race says, not {path}")


def say_how_to_train(session: ClusterSession, path: Path, data: str | None = None) -> None:
    """Print a command that trains with a placement, on data that fit the model.

    Args:
        session: with the model.
        path: of the placement.
        data: to train on; by default digits for drlpp's own models that can read them.
    """
    task, reference = session.captured.task, session.captured.reference
    if task.loss is None:
        return
    fitting = OWN_DATA if reference.naming_option else fitting_data(task.inputs, task.targets)
    where = f" --cluster {shlex.quote(session.ray_address)}" if session.ray_address else ""
    emulated = ""
    if min(session.speeds) < 1:
        emulated = f" --speeds {','.join(map(str, session.speeds))}"
    if session.links is not None:
        emulated = f" --speeds {shlex.quote(str(path.with_name('cluster.yaml')))}"
    console.print(
        f"train with it: drlpp train {shlex.quote(str(path))}{reference.naming_option}"
        f"{session.optimizer.naming_option} --data {shlex.quote(data or fitting)}"
        f"{emulated}{where}"
    )
