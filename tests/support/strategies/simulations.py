"""Profiles whose sums are exact, clusters, methods, and simulations of all of these."""

from hypothesis import strategies as st

from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.schedule.weight_policies import WEIGHT_POLICIES
from drlpp.simulator import Simulation, simulate
from drlpp.specs.cluster import Cluster, Host, Link
from tests.support.strategies.graphs import (
    graph_of,
    graphs,
    placements,
    profile_of,
    shared_parameters,
    uneven,
)

METHODS = [
    Method(),
    Method(accumulate=3),
    Method(in_flight_per_link=2),
    Method(recompute=True),
    Method(microbatches=4),
    Method(microbatches=2, accumulate=2, recompute=True),
    Method(schedule="1f1b-flush", policy="sync", microbatches=4),
    Method(schedule="gpipe", policy="sync", microbatches=2, accumulate=2, clip_norm=1.0),
    Method(schedule="gpipe", policy="sync", microbatches=2, recompute=True),
    Method(schedule="zb-h1", policy="sync", microbatches=4),
    Method(schedule="zb-h1", policy="sync", microbatches=2, accumulate=2, recompute=True),
]

POLICIES = [
    choose_method(policy, options)
    for policy in WEIGHT_POLICIES
    for options in ({}, {"accumulate": 2}, {"microbatches": 3})
]

FAST = Link(bandwidth_bytes_per_second=1e300)


@st.composite
def costed(draw: st.DrawFn) -> Profile:
    """Whole seconds, three times a power of two or nothing, so that sums are exact."""
    graph = draw(graphs())
    count = len(graph)
    positive = st.lists(st.integers(1, 9), min_size=count, max_size=count)
    shared, parameter_bytes = draw(shared_parameters(count)), draw(positive)
    for one in shared:
        for operator in one.operators:
            parameter_bytes[operator] += one.bytes_
    sized = graph_of(
        [(edge.source, edge.target) for edge in graph.edges],
        parameter_bytes=parameter_bytes,
        output_bytes=draw(positive),
        shared=shared,
    )
    times = st.lists(st.sampled_from([3, 6, 12, 24]), min_size=count, max_size=count)
    return profile_of(sized, draw(times))


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Four accelerators on one to three hosts."""
    sizes = draw(st.sampled_from([(4,), (2, 2), (1, 2, 1)]))
    link = st.builds(
        Link,
        bandwidth_bytes_per_second=st.sampled_from([0.5, 2.0, 8.0]),
        latency_seconds=st.sampled_from([0.0, 1.0]),
    )
    return Cluster(
        hosts=tuple(
            Host(name=f"host-{number}", accelerators=size, speed=draw(st.sampled_from([0.5, 1.0])))
            for number, size in enumerate(sizes)
        ),
        within_host=draw(link),
        between_hosts=draw(link),
    )


@st.composite
def simulations(draw: st.DrawFn) -> tuple[Profile, Cluster, Simulation]:
    profile, cluster = draw(costed()), draw(clusters())
    placement = draw(placements(profile.graph, 4))
    method = draw(uneven(draw(st.sampled_from(METHODS)), len(placement.stages)))
    return profile, cluster, simulate(Workload.of(profile), cluster, placement, method, 6)
