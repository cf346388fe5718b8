"""Ways of training without a pipeline: against the simulator and measurements."""

from __future__ import annotations

import pytest

from benchmarks.made_up import generate
from drlpp.costs.memory import MemoryModel
from drlpp.costs.profile import OperatorProfile, Profile
from drlpp.costs.ways_of_training import PLAIN, WAYS, WaysOfTraining
from drlpp.costs.workload import Workload
from drlpp.placement.placement import Placement, Stage
from drlpp.schedule.method_choice import choose_method
from drlpp.simulator import simulate
from drlpp.specs.cluster import Cluster, Host, Link
from tests.support.strategies.graphs import chain_of

MEGABYTE = 1e6


def hosts_of(count: int, each: int, bandwidth: float, memory: float | None = None) -> Cluster:
    return Cluster(
        hosts=(Host(name="host", count=count, accelerators=each, memory_bytes=memory),),
        within_host=Link(bandwidth_bytes_per_second=1e9, latency_seconds=1e-5),
        between_hosts=Link(bandwidth_bytes_per_second=bandwidth, latency_seconds=1e-4),
    )


def decoder(weights: float, milliseconds: float) -> Profile:
    """Six equal layers in float32 that keep as much as they weigh, at eight samples."""
    layer = OperatorProfile(
        forward_seconds=milliseconds / 18e3,
        backward_seconds=milliseconds / 9e3,
        kept_bytes=round(weights * 4 / 6),
    )
    of_layer = round(weights * 4 / 6)
    _, profile = chain_of(
        seconds=[1.0] * 6, parameter_bytes=[of_layer] * 6, output_bytes=[200_000] * 6
    )
    return profile.model_copy(update={"operators": (layer,) * 6, "batch_size": 8})


def ways(profile: Profile, cluster: Cluster) -> WaysOfTraining:
    return WaysOfTraining(
        Workload.of(profile), cluster, MemoryModel(state_copies=2.0), profile.batch_size
    )


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("bandwidth", [1e8, 1e10])
def test_ddp_takes_what_the_simulator_says_of_replicas(seed: int, bandwidth: float) -> None:
    overheads = {"forward_overhead_seconds": 0.01, "sharing_seconds_per_byte": 1e-10}
    update = {"fixed_share": 0.1, "update_seconds_per_byte": 2e-10, "batch_size": 64}
    profile = generate("residual", 20, seed).model_copy(update=overheads | update)
    cluster = hosts_of(2, 2, bandwidth)
    options = {"schedule": "1f1b-flush", "microbatches": 4}
    method = choose_method("sync", options)
    stage = Stage(operators=tuple(range(20)), accelerators=(0, 1, 2, 3))
    played = simulate(Workload.of(profile, method), cluster, Placement(stages=(stage,)), method)
    predicted = ways(profile, cluster).of("ddp", range(4))
    assert predicted.seconds_per_minibatch == pytest.approx(played.seconds_per_minibatch, rel=1e-3)


@pytest.mark.parametrize(
    ("weights", "milliseconds", "bandwidth", "name", "accelerators", "measured"),
    [
        (2.7e6, 150, 19e6, "ddp", 4, 954),
        (2.7e6, 150, 19e6, "ddp", 2, 688),
        (2.7e6, 150, 19e6, "zero-2", 4, 1522),
        (2.7e6, 150, 19e6, "fsdp", 4, 2007),
        (10.7e6, 400, 25e6, "ddp", 4, 2775),
    ],
)
def test_predictions_are_within_15_percent_of_measurements(
    weights: float,
    milliseconds: float,
    bandwidth: float,
    name: str,
    accelerators: int,
    measured: float,
) -> None:
    """Decoders on hosts of one emulated accelerator, by torch on Gloo; milliseconds."""
    of_model = ways(decoder(weights, milliseconds), hosts_of(4, 1, bandwidth))
    predicted = of_model.of(name, range(accelerators)).seconds_per_minibatch
    assert predicted == pytest.approx(measured / 1e3, rel=0.155)


def test_what_links_take_without_anything_to_hide_behind() -> None:
    """In units of (m − 1)/m · W/B: DDP 2, compressed less; ZeRO-1 3, ZeRO-2 2 and FSDP 3."""
    gpus = hosts_of(4, 1, 1e6)
    gpus = gpus.with_hosts(host.model_copy(update={"device": "cuda"}) for host in gpus.hosts)
    of_model = ways(decoder(24e6, 1e-3), gpus)
    unit = 3 / 4 * 24e6 * 4 / 1e6
    found = {name: of_model.of(name, range(4)).seconds_per_minibatch / unit for name in WAYS}
    expected = {PLAIN: 0, "ddp": 2, "ddp-bf16": 1, "zero-1": 3, "zero-2": 2, "fsdp": 3}
    less = dict.fromkeys(("local-sgd", "diloco"), 2 / 64) | {"powersgd": 2 / 32}
    assert found == pytest.approx(expected | less, abs=1e-3)


def test_averages_of_more_accelerators_cost_more_samples() -> None:
    of_model = ways(decoder(24e6, 1e-3), hosts_of(8, 1, 1e6))
    two, four, eight = (of_model.of("local-sgd", range(m)).samples - 1 for m in (2, 4, 8))
    assert (two, four, eight) == pytest.approx((0.37 / 2, 0.37, 2 * 0.37))


def test_shards_and_passes_make_a_model_fit() -> None:
    """100 MB of weights, with Adam 400 MB, and 100 MB of activations of a minibatch."""
    profile = decoder(25e6, 100)
    of_model = ways(profile, hosts_of(4, 1, 1e9, memory=450 * MEGABYTE))
    assert of_model.memory_ratio == pytest.approx(500 / 450, rel=0.02)
    best = {one.name: one for one in of_model.best()}
    assert best[PLAIN].fits
    assert best[PLAIN].passes == 4
    small = ways(profile, hosts_of(4, 1, 1e9, memory=250 * MEGABYTE))
    best = {one.name: one for one in small.best()}
    assert [name for name, one in best.items() if one.fits] == ["zero-2", "fsdp"]
    assert best["fsdp"].memory_bytes < best["zero-2"].memory_bytes < best["zero-1"].memory_bytes


def test_slow_links_leave_data_parallelism_to_a_host() -> None:
    of_model = ways(decoder(2.7e6, 150), hosts_of(2, 2, 19e6))
    best = {one.name: one for one in of_model.best()}
    assert best["ddp"].accelerators == (0, 1)
    assert best["ddp"].seconds_per_minibatch == pytest.approx(0.094, rel=0.2)
    assert of_model.weights_ratio == pytest.approx(3.8, rel=0.05)
    everywhere = of_model.of_all()
    assert everywhere is not None
    assert everywhere.waiting_share == pytest.approx(0.95, abs=0.03)
