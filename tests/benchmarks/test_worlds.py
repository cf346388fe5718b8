"""Links of the study of worlds: the ratio that the formula asks for."""

from __future__ import annotations

import pytest

from benchmarks.world import real_ratio, scaled_links, speeds_of
from drlpp.costs.memory import MemoryModel
from drlpp.costs.profile import OperatorProfile
from drlpp.costs.ways_of_training import WaysOfTraining
from drlpp.costs.workload import Workload
from drlpp.specs.cluster import Link, local_cluster, read_cluster
from tests.support.strategies.graphs import chain_of

_SPEEDS = (0.4,) * 4
_LAYER = 1_800_000


@pytest.mark.parametrize(
    ("world", "ratio"),
    [("a100-100gbit", 0.456), ("a100-10gbit", 4.557), ("rtx4090-1gbit", 24.09)],
)
def test_scaled_links_have_the_ratio_of_the_world(world: str, ratio: float) -> None:
    """F / (3·T·B): 1.4e14 / (3 · 8192 · 1.25e9) = 4.557."""
    named = read_cluster(world)
    assert real_ratio(named) == pytest.approx(ratio, rel=1e-3)

    _, profile = chain_of(
        seconds=[1.0] * 6, parameter_bytes=[_LAYER] * 6, output_bytes=[200_000] * 6
    )
    layer = OperatorProfile(forward_seconds=0.01, backward_seconds=0.02)
    profile = profile.model_copy(update={"operators": (layer,) * 6, "batch_size": 8})
    workload, memory = Workload.of(profile), MemoryModel()
    here = local_cluster(4, Link(bandwidth_bytes_per_second=1e9), _SPEEDS)
    plain = WaysOfTraining(workload, here, memory, 8).plain.seconds_per_minibatch

    links = scaled_links(named, 6 * _LAYER, plain).with_speeds(_SPEEDS)
    scaled = WaysOfTraining(workload, links, memory, 8)
    assert scaled.weights_ratio == pytest.approx(ratio, rel=0.03)
    assert len(links.host_names) == 4


def test_a_latency_is_the_same_share_of_a_minibatch() -> None:
    """A billion weights take 6e9 · 8192 / 1.4e14 = 0.351 s of an A100."""
    links = scaled_links(read_cluster("a100-10gbit"), 1e7, 0.351)
    assert links.within_host.latency_seconds == pytest.approx(5e-5, rel=1e-2)


def test_speeds_are_to_each_other_as_those_of_the_world() -> None:
    """Two accelerators of 74 TFLOP/s, two of 32."""
    slower = 0.4 * 32 / 74
    assert speeds_of(read_cluster("mixed-10gbit")) == pytest.approx((0.4, 0.4, slower, slower))
