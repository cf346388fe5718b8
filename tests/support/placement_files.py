"""Files of placements, to train with."""

from drlpp.capturing import CapturedModel
from drlpp.cluster import Link, local_cluster
from drlpp.optimizer_spec import OptimizerSpec
from drlpp.placement import Placement
from drlpp.placement_file import PlacementFile
from drlpp.training_options import Method

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
