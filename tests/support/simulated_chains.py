"""Chains of operators on fast clusters, for examples of the simulator worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from drlpp.costs.profile import Profile
from drlpp.costs.tensors import Transfer
from drlpp.costs.workload import Workload
from drlpp.placement.placement import Placement
from drlpp.schedule.method import Method
from drlpp.simulator import Simulation, simulate
from drlpp.specs.cluster import Cluster, Host, Link
from tests.support.strategies.graphs import chain_of, graph_of, profile_of

FAST = 1e300
"""Bytes per second at which no message takes time."""

MIB = 1024 * 1024


def fast_cluster(accelerators: int, **host: float) -> Cluster:
    return Cluster(
        hosts=(Host(name="here", accelerators=accelerators, **host),),
        within_host=Link(bandwidth_bytes_per_second=FAST),
    )


def stages_of(
    profile: Profile,
    cluster: Cluster,
    *replicas: int,
    method: Method = Method(),  # noqa: B008
    minibatches: int = 30,
) -> Simulation:
    """One operator for each stage, accelerators in order."""
    accelerators = [stage for stage, count in enumerate(replicas) for _ in range(count)]
    placement = Placement.from_assignment(range(len(replicas)), accelerators)
    return simulate(Workload.of(profile, method), cluster, placement, method, minibatches)


def chain(
    *seconds: float, parameter_bytes: int = 0, output_bytes: int = 1, kept_bytes: int = 0
) -> Profile:
    """A third of the seconds forward, the rest backward."""
    _, profile = chain_of(
        seconds=seconds,
        parameter_bytes=[parameter_bytes] * len(seconds),
        output_bytes=[output_bytes] * len(seconds),
    )
    operators = tuple(
        operator.model_copy(update={"kept_bytes": kept_bytes}) for operator in profile.operators
    )
    return profile.model_copy(update={"operators": operators})


def one_way(*, seconds: float, bytes_: int) -> Profile:
    """Two operators; what the first makes are integers, for which no gradient comes back."""
    graph = graph_of(
        [(0, 1)], parameter_bytes=[0, 0], output_bytes=[bytes_, 1], dtypes=["int64", "float32"]
    )
    return profile_of(graph, [seconds, seconds])


def chain_workload(
    forward: Sequence[float], backward: Sequence[float], messages: Sequence[float]
) -> Workload:
    """One operator for each stage; a message takes its bytes on a link of 1 byte per second."""
    count = len(forward)
    return Workload(
        model="chain",
        names=tuple(f"op{i}" for i in range(count)),
        forward_seconds=numpy.array(forward),
        backward_seconds=numpy.array(backward),
        update_seconds=numpy.zeros(count),
        parameter_bytes=numpy.ones(count),
        kept_bytes=numpy.ones(count),
        working_bytes=numpy.zeros(count + 1),
        edges=tuple((i, i + 1) for i in range(count - 1)),
        transfers=tuple(Transfer((i, i + 1), bytes_, bytes_) for i, bytes_ in enumerate(messages)),
    )


def straight(stages: int) -> Placement:
    return Placement.from_assignment(range(stages), range(stages))
