"""The folder of a run: the hosts it ran on, and what it found, as ``--json`` prints it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from drlpp.cli.command_line import read_hosts

if TYPE_CHECKING:
    from drlpp.specs.cluster import Cluster


def hosts_of_run(given: Path | None, cluster: str | None, folder: Path) -> Cluster | None:
    """Return the hosts that a run wants, None for any.

    A run that is resumed on a Ray cluster wants those that it has measured, so that accelerators
    keep their numbers.

    Args:
        given: the ``cluster.yaml`` that the user has given.
        cluster: address of the Ray cluster; None for this machine.
        folder: of the run.

    Raises:
        InvalidInput: the file cannot be read.
    """
    known = folder / "cluster.yaml"
    if given is None and cluster is not None and known.exists():
        return read_hosts(known)
    return read_hosts(given)


def run_record(folder: Path) -> dict[str, Any]:
    """Return what is in the folder of a run: placement, verdicts, and where to read more."""
    from drlpp.io.run_folder import REPORT_NAME
    from drlpp.racing.verdict import verdict_lines
    from drlpp.reporting.run_files import read_run

    files = read_run(folder)
    found: dict[str, Any] = {"folder": str(folder)}
    if (folder / REPORT_NAME).exists():
        found["report"] = str(folder / REPORT_NAME)
    if files.placement is not None and (folder / "placement.json").exists():
        placement = files.placement
        measured = placement.measurement
        found["placement"] = {
            "file": str(folder / "placement.json"),
            "configuration": placement.configuration,
            "method": str(placement.method),
            "found_by": placement.found_by,
            "seconds_per_minibatch": measured and measured.seconds_per_minibatch,
        }
    if files.search is not None:
        search, sure = files.search, files.search.sureness
        found["search"] = {
            "placements": search.placements,
            "seconds": search.seconds,
            "cluster_seconds": search.cluster_seconds,
            "deploying_seconds": search.deploying_seconds,
            "sureness": sure
            and {
                "configuration": sure.configuration,
                "method": str(sure.method),
                "share": sure.share,
                "expected_gain": sure.expected_gain,
            },
        }
    comparison = files.comparison
    if comparison is not None and comparison.verdict is not None:
        found["verdict"] = list(verdict_lines(comparison.verdict, comparison.entrants))
    if files.race is not None:
        own, learnt = folder / "race.json", folder / "race" / "race.json"
        found["race"] = str(own if own.exists() else learnt)
    return found
