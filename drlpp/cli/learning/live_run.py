"""How a run of ``drlpp learn`` or ``drlpp race`` begins, and what it ends with."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drlpp.capturing.capture import CapturedModel
from drlpp.cli.arguments import Learn, Race
from drlpp.cli.command_line import console, end_with_report, resumable
from drlpp.cli.commands import keep_options
from drlpp.io.formatting import speeds_option
from drlpp.io.run_folder import REPORT_NAME, open_run_folder
from drlpp.racing.comparison import Comparison
from drlpp.racing.to_loss import Course
from drlpp.racing.training_race import RaceEnd, Training
from drlpp.racing.winner import export
from drlpp.report.run_files import read_run
from drlpp.runtime import ClusterSession
from drlpp.specs.cluster import Cluster
from drlpp.specs.data import OWN_DATA, fitting_data


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
    speeds = of_session["speeds"]
    known = {
        "model": captured.reference.model_dump(),
        "workers": of_session["workers"],
        "speeds": speeds and list(speeds),
        "device": given.workers.device.value,
        "method": of_session["method"].model_dump(),
        "optimizer": of_session["optimizer"].settings,
        "seed": given.run.seed,
        **settings,
    }
    if (links := of_session["links"]) is not None:
        known["links"] = links.model_dump(mode="json")
    command = f"drlpp {'learn' if what == 'run' else what}"
    with (
        open_run_folder(folder, command, known, resume=given.run.resume, note=console.print),
        resumable(what),
    ):
        keep_options(folder)
        seed, note = given.run.seed, console.print
        with ClusterSession(captured, seed=seed, note=note, **of_session) as session:
            yield session
        end_with_report(folder)


def export_winner(
    folder: Path, comparison: Comparison, course: Course, end: RaceEnd, cluster: Cluster
) -> None:
    """Write the placement that won the race, with its learning rate; say how to train.

    Args:
        folder: for ``placement.json``, which holds the best by seconds per minibatch.
        comparison: by seconds, which may have measured the winner.
        course, end: the race.
        cluster: whose accelerators are the session's workers.
    """
    session = course.session
    race, path = course.race, folder / "placement.json"
    if end.winner is None:
        console.print(
            f"no candidate won the race to a loss, so {path} stays the best by time per minibatch; "
            "a longer race continues this one (--limit with --resume)"
        )
        return
    if (won := race.candidates[end.winner]).candidate is not None:
        for known in comparison.contenders:
            if known.key == won.key:
                won = won.model_copy(update={"measurements": known.measurements})
        rate = end.rates[end.winner]
        assert rate is not None
        optimizer = course.optimizer_of(Training(end.winner, rate))
        export(session, won, cluster, folder, optimizer)
        console.print(
            f"exported to {path}: {won.beside(session.method)}, found by {won.found_by}, the "
            f"winner of the race, with learning rate {rate:.3g}"
        )
    if end.verdict is not None and end.verdict.is_torch_as_good:
        console.print(f"use plain PyTorch, as the race says, not {path}")
    else:
        say_how_to_train(session, path, race.data)


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
    emulated = speeds_option(session.speeds if min(session.speeds) < 1 else ())
    if session.links is not None:
        emulated = f" --speeds {shlex.quote(str(path.with_name('cluster.yaml')))}"
    console.print(
        f"train with it: drlpp train {shlex.quote(str(path))}{reference.naming_option}"
        f"{session.optimizer.naming_option} --data {shlex.quote(data or fitting)}"
        f"{emulated}{where}"
    )


def run_record(folder: Path) -> dict[str, Any]:
    """Return what is in the folder of a run: placement, verdicts, and where to read more."""
    files = read_run(folder)
    found: dict[str, Any] = {"folder": str(folder)}
    if (folder / REPORT_NAME).exists():
        found["report"] = str(folder / REPORT_NAME)
    path = folder / "placement.json"
    if (placement := files.placement) is not None and path.exists():
        measured = placement.measurement
        found["placement"] = {
            "file": str(path),
            "configuration": placement.configuration,
            "method": str(placement.method),
            "found_by": placement.found_by,
            "seconds_per_minibatch": measured and measured.seconds_per_minibatch,
        }
    if files.search is not None:
        found["search"] = files.search.model_dump(mode="json")
    if (comparison := files.comparison) is not None and comparison.verdict is not None:
        found["verdict"] = list(comparison.verdict.lines())
    if files.race is not None:
        own, learnt = folder / "race.json", folder / "race" / "race.json"
        found["race"] = str(own if own.exists() else learnt)
    return found
