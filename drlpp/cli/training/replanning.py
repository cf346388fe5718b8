"""``drlpp train`` with another number of workers than its placement is for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from drlpp.cli.command_line import build_console, said_if_long

if TYPE_CHECKING:
    from drlpp.capturing.capture import CapturedModel
    from drlpp.placement.placement_file import PlacementFile


def placement_for(
    workers: int, path: Path, document: PlacementFile, seed: int
) -> tuple[PlacementFile, CapturedModel]:
    """Plan for ``workers`` workers, and say what was found.

    Args:
        workers: another number than the placement is for.
        path: of the placement; next to it ``profile.json`` has the costs, and
            ``measurements.jsonl`` what ran.
        document: what it contains, with the method and the optimizer to train with.
        seed: of the model's weights.

    Returns:
        A placement for these, and the captured model.

    Raises:
        InvalidInput: no placement for so many can be run.
    """
    from drlpp.capturing.capture import capture
    from drlpp.planners.replanning import measured_beside, profile_beside, replanned

    with said_if_long(f"planning anew for --workers {workers}"):
        captured = capture(document.model, seed=seed)
        costs = profile_beside(path, captured.graph)
        measured = measured_beside(path, document)
        found = replanned(document, captured.graph, workers, costs, measured)
    build_console().print(
        f"{path} is for {document.cluster.accelerators} workers; for {workers} it is "
        f"{found.configuration} ({found.found_by})",
        soft_wrap=True,
    )
    return found, captured
