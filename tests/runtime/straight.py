"""Even cuts of a model into as many stages as accelerators say, and files of such placements."""

from drlpp.capturing import CapturedModel
from drlpp.cluster import Link, local_cluster
from drlpp.optimizer_spec import OptimizerSpec
from drlpp.placement import Placement
from drlpp.placement_file import PlacementFile
from drlpp.training_options import Method

ADAM = OptimizerSpec(name="adam", options={"lr": 0.01})


def straight(captured: CapturedModel, *accelerators: int) -> Placement:
    """Accelerator i holds stage ``accelerators[i]``."""
    stages, operators = max(accelerators) + 1, len(captured.graph)
    return Placement.from_assignment(
        [min(stages * i // operators, stages - 1) for i in range(operators)], accelerators
    )


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
