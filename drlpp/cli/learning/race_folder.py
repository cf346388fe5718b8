"""Where a run that learns has its race to a loss, whatever accelerators there are now."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

from drlpp.specs.cluster import Cluster

FOLDER_NAME, CLUSTER_NAME = "race", "cluster.yaml"


def race_folder(run: Path, are_there: Callable[[Cluster], bool]) -> Path:
    """Return the folder ``race`` of a run, with what was raced before on those that are there.

    Who trains has the numbers of its workers, so a race on others cannot go on: it is put aside, as
    ``race-1``, ``race-2``, …, and taken out again when its accelerators are there.

    Args:
        run: the folder.
        are_there: says whether a cluster's accelerators are those that are there, in their order.
    """
    from drlpp.io.documents import read_document

    def can_continue(folder: Path) -> bool:
        return are_there(read_document(folder / CLUSTER_NAME, Cluster))

    folder = run / FOLDER_NAME
    if (folder / CLUSTER_NAME).exists() and not can_continue(folder):
        folder.rename(
            next(free for n in count(1) if not (free := run / f"{FOLDER_NAME}-{n}").exists())
        )
    if not folder.exists():
        aside = (path.parent for path in sorted(run.glob(f"{FOLDER_NAME}-*/{CLUSTER_NAME}")))
        if known := next(filter(can_continue, aside), None):
            known.rename(folder)
    folder.mkdir(exist_ok=True)
    return folder
