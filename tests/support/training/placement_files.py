"""Files of placements, to train with."""

from drlpp.capturing.capture import CapturedModel
from drlpp.placement.placement import Placement
from drlpp.placement.placement_file import PlacementFile
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Link, local_cluster
from drlpp.specs.optimizer_spec import OptimizerSpec

ADAM = OptimizerSpec(name="adam", options={"lr": 0.01})


def file_of(
    captured: CapturedModel,
    placement: Placement,
    method: Method | None = None,
    optimizer: OptimizerSpec = ADAM,
) -> PlacementFile:
    """To train with."""
    return PlacementFile.create(
        captured.reference,
        captured.graph,
        placement,
        local_cluster(len(placement.accelerators), Link(bandwidth_bytes_per_second=1e9)),
        method=method or Method(),
        optimizer=optimizer,
        found_by="test",
    )
