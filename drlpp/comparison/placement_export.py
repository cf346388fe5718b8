"""Writing the placement that a run has found."""

from __future__ import annotations

from pathlib import Path

from drlpp.comparison.contenders import Contender
from drlpp.io.documents import write_document
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.placement_file import PlacementFile
from drlpp.runtime.session.session import ClusterSession
from drlpp.specs.cluster import Cluster
from drlpp.specs.optimizer_spec import OptimizerSpec


def export(
    session: ClusterSession,
    contender: Contender,
    cluster: Cluster,
    folder: Path,
    optimizer: OptimizerSpec | None = None,
) -> Path:
    """Write ``placement.json`` with the contender's median measurement; returns its path.

    The contender has a placement: plain PyTorch needs no file. Without ``optimizer`` it is the
    session's. The cluster may be a part of the session's, by whose numbers the placement is.
    """
    assert contender.candidate is not None
    document = PlacementFile.of(
        ExecutionPlan.of(contender.candidate, session.graph, cluster.accelerators),
        session.captured.reference,
        session.graph,
        cluster,
        optimizer=optimizer or session.optimizer,
        found_by=contender.found_by,
        measurement=contender.median_measurement,
    )
    return write_document(folder / "placement.json", document)
