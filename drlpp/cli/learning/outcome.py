"""What a run of ``drlpp learn`` or ``drlpp race`` ends with: its export, and its record."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drlpp.cli.command_line import console

if TYPE_CHECKING:
    from drlpp.cli.learning.learning_job import LearningJob
    from drlpp.racing.comparison import Comparison
    from drlpp.racing.to_loss import Course
    from drlpp.racing.training_race import RaceEnd
    from drlpp.runtime import ClusterSession
    from drlpp.specs.cluster import Cluster


def export_best(job: LearningJob, comparison: Comparison) -> Path:
    """Write the simplest of the placements that are as good as the best one; return where."""
    from drlpp.errors import RunFailure
    from drlpp.racing.winner import export

    verdict = comparison.verdict
    if verdict is None or verdict.placement is None:
        raise RunFailure("none of the placements compared could be measured")
    chosen = comparison.contenders[verdict.placement]
    path = export(job.session, chosen, job.cluster, job.out)
    # Plain PyTorch may be better, but it has no placement.
    if verdict.placement == verdict.fastest:
        why = "the fastest"
    elif verdict.placement in verdict.equals:
        why = "the simplest placement that is not shown to be slower than any other candidate"
    else:
        why = "the best placement"
    how_long = "" if job.data is None else " until the race to a loss has ended"
    console.print(
        f"exported to {path}{how_long}: {chosen.beside(job.session.method)}, found by "
        f"{chosen.found_by}, {why}"
    )
    return path


def export_winner(
    folder: Path,
    session: ClusterSession,
    comparison: Comparison,
    course: Course,
    end: RaceEnd,
    cluster: Cluster,
) -> None:
    """Write the placement that won the race, with its learning rate; say how to train.

    Args:
        folder: for ``placement.json``, which holds the best by seconds per minibatch.
        session: the workers.
        comparison: by seconds, which may have measured the winner.
        course, end: the race.
        cluster: whose accelerators are the session's workers.
    """
    from drlpp.racing.training_race import Training
    from drlpp.racing.winner import export

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
    if end.verdict is not None and end.verdict.is_plain_as_good:
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
    from drlpp.io.formatting import speeds_option
    from drlpp.specs.data import OWN_DATA, fitting_data

    task, reference = session.captured.task, session.captured.reference
    if task.loss is None:
        return
    fitting = OWN_DATA if reference.naming_option else fitting_data(task.inputs, task.targets)
    where = f" --cluster {shlex.quote(session.ray_address)}" if session.ray_address else ""
    console.print(
        f"train with it: drlpp train {shlex.quote(str(path))}{reference.naming_option}"
        f"{session.optimizer.naming_option} --data {shlex.quote(data or fitting)}"
        f"{speeds_option(session.speeds if min(session.speeds) < 1 else ())}{where}"
    )


def export_best_so_far(job: LearningJob) -> None:
    """Write the fastest placement that has been measured: after Ctrl-C, or when a host is lost."""
    from drlpp.racing.contenders import Contender
    from drlpp.racing.winner import export

    memory, budget = job.memory, job.measuring.budget
    best = memory.best()
    if best is None:
        console.print("stopped before any placement was measured")
        return
    contender = Contender.of(job.candidate(best[0]), job.agent).with_outcome(best[1])
    path = export(job.session, contender, job.cluster, job.out)
    stopped = (
        f"after {memory.distinct} of {budget} placements"
        if memory.distinct < budget
        else f"in the final comparison, after all {memory.distinct} placements"
    )
    console.print(
        f"stopped {stopped}; the fastest so far is in {path} "
        f"({contender.beside(job.session.method)}, {best[1].seconds_per_minibatch * 1e3:.1f} ms "
        "per minibatch, not compared with plain PyTorch). Continue with --resume"
    )


def run_record(folder: Path) -> dict[str, Any]:
    """Return what is in the folder of a run: placement, verdicts, and where to read more."""
    from drlpp.io.run_folder import REPORT_NAME
    from drlpp.report.run_files import read_run

    files = read_run(folder)
    found: dict[str, Any] = {"folder": str(folder)}
    if (folder / REPORT_NAME).exists():
        found["report"] = str(folder / REPORT_NAME)
    if (placement := files.placement) is not None and (folder / "placement.json").exists():
        measured = placement.measurement
        found["placement"] = {
            "file": str(folder / "placement.json"),
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
