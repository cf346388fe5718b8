"""Data parallelism: the whole model as one stage, replicated on every accelerator."""

from __future__ import annotations

from drlpp.cluster import Cluster
from drlpp.graph import OpGraph
from drlpp.placement import Placement, Stage
from drlpp.profile import Profile


def data_parallel(graph: OpGraph, profile: Profile, cluster: Cluster) -> Placement:
    """Place all operators in one stage that all accelerators hold; costs do not matter."""
    stage = Stage(
        operators=tuple(range(len(graph))), accelerators=tuple(range(cluster.accelerators))
    )
    return Placement(stages=(stage,))
