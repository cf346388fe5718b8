"""Placements for another number of accelerators than they were made for."""

from pathlib import Path

import pytest

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.costs.profile import Profile
from drlpp.costs.profiles.estimated_profile import estimate_profile
from drlpp.errors import InvalidFile, InvalidInput
from drlpp.io.documents import write_document
from drlpp.io.files import append
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import FailedMeasurement, Measurement
from drlpp.placement.measurements_file import Entry, Header
from drlpp.placement.placement import Placement
from drlpp.placement.placement_file import PlacementFile
from drlpp.planners.replanning import Elastic, Replanner, measured_beside, replanned
from drlpp.runtime.hosts.on_ray.nodes import hosts_of
from drlpp.schedule.method import Method
from drlpp.simulator import SimulatedCluster
from drlpp.specs.cluster import Cluster, Host, Link
from tests.support.training.pipelines import in_a_row
from tests.support.training.placement_files import file_of

FAST = Link(bandwidth_bytes_per_second=1e9)


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:perceptron"))


@pytest.fixture(scope="module")
def document(captured: CapturedModel) -> PlacementFile:
    return file_of(captured, in_a_row(captured.graph, 0, 1, 2, 3))


@pytest.fixture(scope="module")
def profile(captured: CapturedModel) -> Profile:
    # So slow that any link is worth it.
    return estimate_profile(captured.graph, bytes_per_second=1e3)


def test_without_a_profile_the_operators_are_cut_evenly_for_those_that_are_left(
    captured: CapturedModel, document: PlacementFile
) -> None:
    planner = Replanner(document, captured.graph)
    plan = planner.plan([0, 3], 4)
    assert [stage.accelerators for stage in plan.placement.stages] == [(0,), (3,)]
    assert plan.accelerators == 4
    assert planner.plan([1], 4).placement.configuration == "1"
    assert planner.plan([0, 1, 2, 3], 4).placement == document.resolve(captured.graph)
    # One more than it knows, like the last.
    assert len(planner.plan(range(5), 5).placement.accelerators) == 5


@pytest.mark.parametrize("profiled", [False, True])
def test_lists_for_four_stages_are_one_value_for_any_other_number(
    captured: CapturedModel, document: PlacementFile, profile: Profile, profiled: bool
) -> None:
    method = Method(in_flight_per_link=(0, 2, 1), recompute=(False, True, False, False))
    listed = document.model_copy(update={"method": method})
    planner = Replanner(listed, captured.graph, profile if profiled else None)
    kept = planner.plan([0, 1, 2, 3], 4)
    assert kept.method == method
    for plan in (planner.plan([0, 1, 3], 4), planner.plan([1], 4)):
        assert plan.method == Method(in_flight_per_link=2, recompute=True)
    assert planner.file(2).method == Method(in_flight_per_link=2, recompute=True)


def test_a_placement_that_needs_only_those_that_are_left_is_kept(captured: CapturedModel) -> None:
    row = in_a_row(captured.graph, 0, 1)
    cluster = Cluster(hosts=(Host(name="here", accelerators=4),), within_host=FAST)
    wide = file_of(captured, row).model_copy(update={"cluster": cluster})
    planner = Replanner(wide, captured.graph)
    assert planner.plan([0, 1, 3], 4).placement == row
    assert planner.plan([0, 2, 3], 4).placement.accelerators == (0, 2, 3)


def test_workers_beyond_the_placements_are_on_hosts_of_their_own(
    captured: CapturedModel, document: PlacementFile, profile: Profile
) -> None:
    """As Ray's nodes are found for them, numbers and all; so a cut to them is a network's."""
    slow = Link(bandwidth_bytes_per_second=1e3)
    hosts = (Host(name="a", accelerators=3), Host(name="b", accelerators=2, speed=0.5))
    cluster = Cluster(hosts=hosts, within_host=FAST, between_hosts=slow)
    planner = Replanner(document.model_copy(update={"cluster": cluster}), captured.graph, profile)
    found = planner.cluster(range(8))
    assert [found.host_names[host] for host in found.host_of] == [
        plan.name for plan in hosts_of(cluster, 8, gpus=False) for _ in plan.workers
    ]
    assert found.host_names == ("a", "b", "another-5", "another-7")
    assert found.speeds == (1.0,) * 3 + (0.5,) * 5
    assert (found.link(4, 5), found.link(5, 6), found.link(6, 7)) == (slow, FAST, slow)
    assert planner.cluster([3, 6, 7]).host_names == ("b", "another-5", "another-7")
    # A file may be planned anew for still more.
    again = Replanner(planner.file(6), captured.graph).cluster(range(7))
    assert again.host_names == ("a", "b", "another-5", "another-6")


def test_what_cannot_be_planned_for_is_refused_in_words(
    captured: CapturedModel, document: PlacementFile, profile: Profile
) -> None:
    with pytest.raises(InvalidInput, match="0 workers were asked for"):
        replanned(document, captured.graph, 0)
    other = capture(ModelReference.named("tests.support.models.small:perceptron", layers=2))
    with pytest.raises(InvalidInput, match="profile this model"):
        replanned(document, other.graph, 2, profile)
    folded = Method(schedule="zb-v", policy="sync", microbatches=2)
    with pytest.raises(InvalidInput, match="need two accelerators"):
        replanned(document.model_copy(update={"method": folded}), captured.graph, 1)


@pytest.mark.parametrize("text", ["4", "4:2", "0:2", ":", "2:x", "2:99999"])
def test_a_range_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"(MIN:MAX|expected 1 or more), .*2:4"):
        Elastic.parse(text)


def test_the_profile_next_to_the_placement_has_the_costs(
    captured: CapturedModel, document: PlacementFile, profile: Profile, tmp_path: Path
) -> None:
    path = tmp_path / "placement.json"
    assert Elastic(1, 4).planner(document, captured.graph, path).profile is None
    write_document(tmp_path / "profile.json", profile)
    assert Elastic(1, 4).planner(document, captured.graph, path).profile == profile
    other = capture(ModelReference.named("tests.support.models.small:perceptron", layers=2))
    assert Elastic(1, 4).planner(document, other.graph, path).profile is None
    (tmp_path / "profile.json").write_text("{")
    with pytest.raises(InvalidFile):
        Elastic(1, 4).planner(document, captured.graph, path)


def took(seconds: float, **others: bool) -> Measurement:
    return Measurement(
        seconds_per_minibatch=seconds,
        median_seconds=seconds,
        standard_deviation_seconds=0.0,
        minibatches=8,
        **others,
    )


def test_what_was_measured_on_those_that_are_left_is_taken_if_nothing_is_faster(
    captured: CapturedModel, document: PlacementFile, profile: Profile
) -> None:
    plain = Replanner(document, captured.graph, profile).plan([0, 2, 3], 4).placement
    for here, method, seconds, is_taken in (
        ((0, 3), document.method, 1e-9, True),
        ((0, 3), document.method, 1e9, False),
        ((0, 1), document.method, 1e-9, False),
        ((0, 3), Method(microbatches=2), 1e-9, False),
    ):
        known = Candidate(in_a_row(captured.graph, 0, 1).on(here), method)
        planner = Replanner(document, captured.graph, profile, [(known, took(seconds))])
        found = planner.plan([0, 2, 3], 4).placement
        assert found == (known.placement if is_taken else plain)


def test_what_was_measured_corrects_the_cluster_that_is_planned_for(
    captured: CapturedModel, document: PlacementFile, profile: Profile
) -> None:
    """One of three is far slower than the file says; a plan that knows it gives it less."""
    true = document.cluster.with_speeds([1, 1, 1, 0.1])
    everywhere = Placement.from_assignment([0] * len(captured.graph), [0] * 4)
    cluster = SimulatedCluster(profile, true, method=document.method)
    outcome = cluster.measure(everywhere)
    assert isinstance(outcome, Measurement)
    measured = [(Candidate(everywhere, document.method), outcome)]

    def seconds(planner: Replanner) -> float:
        found = cluster.measure(planner.plan([0, 1, 3], 4).placement)
        assert isinstance(found, Measurement)
        return found.seconds_per_minibatch

    blind = Replanner(document, captured.graph, profile)
    knowing = Replanner(document, captured.graph, profile, measured)
    assert seconds(knowing) < 0.5 * seconds(blind)
    # What a file describes is what the user has described.
    assert knowing.file(3).cluster == document.cluster.part([0, 1, 2])


def _header(document: PlacementFile) -> Header:
    return Header(
        model="perceptron",
        graph_fingerprint=document.graph_fingerprint,
        accelerators=4,
        minibatches=8,
        method=document.method,
    )


def test_measurements_next_to_a_placement_are_those_of_its_model_and_cluster(
    captured: CapturedModel, document: PlacementFile, tmp_path: Path
) -> None:
    path, usual = tmp_path / "placement.json", document.method
    assert measured_beside(path, document) == ()
    first, second = (
        Candidate(in_a_row(captured.graph, 0, 1).on(accelerators), usual)
        for accelerators in ((0, 1), (2, 3))
    )
    failed = FailedMeasurement(failure="out of memory", reason="too little")
    records = [_header(document)] + [
        Entry.of(candidate, outcome, usual)
        for candidate, outcome in (
            (first, took(3.0)),
            (first, took(1.0)),
            (first, took(2.0)),
            (second, took(0.5, cut_short=True)),
            (Candidate(in_a_row(captured.graph, 0, 1).on((1, 2)), usual), failed),
        )
    ]
    beside = tmp_path / "measurements.jsonl"
    for record in records:
        append(beside, record)
    assert measured_beside(path, document) == ((first, took(2.0)),)
    fewer = document.model_copy(update={"cluster": document.cluster.part([0, 1])})
    assert measured_beside(path, fewer) == ()
    other = document.model_copy(update={"graph_fingerprint": "0" * 16})
    assert measured_beside(path, other) == ()
