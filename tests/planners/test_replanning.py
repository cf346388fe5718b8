"""Placements for another number of accelerators than they were made for."""

from pathlib import Path

import pytest

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.costs.profile import Profile
from drlpp.errors import InvalidFile, InvalidInput
from drlpp.io.documents import write_document
from drlpp.models.model_reference import ModelReference
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import LinkUsage, Measurement, WorkerUsage
from drlpp.placement.placement_file import PlacementFile
from drlpp.planners.replanning import Elastic, Replanner
from drlpp.runtime.hosts.on_ray.nodes import hosts_of
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Cluster, Host, Link, local_cluster
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
    return Profile.estimated(captured.graph, bytes_per_second=1e3)


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
        Replanner(document, captured.graph).file(0)
    other = capture(ModelReference.named("tests.support.models.small:perceptron", layers=2))
    with pytest.raises(InvalidInput, match="profile this model"):
        Replanner(document, other.graph, profile)
    folded = Method(schedule="zb-v", policy="sync", microbatches=2)
    with pytest.raises(InvalidInput, match="need two accelerators"):
        Replanner(document.model_copy(update={"method": folded}), captured.graph).file(1)


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


def test_slow_workers_and_slow_messages_are_planned_for(
    captured: CapturedModel, document: PlacementFile
) -> None:
    """Costs are those that were measured last; links as they were timed last.

    A cut to a worker is not worth it where it is slow, nor where messages are.
    """
    profile = Profile.estimated(captured.graph, bytes_per_second=1e6)
    link = Link(bandwidth_bytes_per_second=1e7, latency_seconds=2e-5)
    linked = document.model_copy(update={"cluster": local_cluster(4, link)})
    planner = Replanner(linked, captured.graph, profile)
    plan = planner.plan(range(4), 4)
    usual = _measurement(plan, [1.0, 1.0, 1.0, 1.0])
    assert planner.slowness(plan, usual) == {}
    seen = planner.corrected(plan, usual)
    before = seen.slowness(plan, usual)
    assert before == pytest.approx(dict.fromkeys(range(4), 1.0), rel=0.3)
    found = seen.slowness(plan, _measurement(plan, [1.0, 1.0, 3.0, 1.0]))
    assert found == pytest.approx({**before, 2: 3 * before[2]})
    slowed = seen.slowed({2: 100.0})
    assert 2 not in slowed.plan(range(4), 4).placement.accelerators
    assert slowed.seconds(plan) > 20 * seen.seconds(plan)
    # What a slow worker does is no news of its costs.
    again = slowed.corrected(plan, _measurement(plan, [1.0, 1.0, 100.0, 1.0]))
    assert again.slowed({}).seconds(plan) == pytest.approx(seen.seconds(plan), rel=0.05)

    # Equal accelerators stay equal, whatever chance adds.
    alike = seen.slowed({1: 2.8, 2: 3.1, 3: 1.5})
    assert alike.slower == pytest.approx({1: 2.95, 2: 2.95, 3: 1.5})
    assert alike.slower[1] == alike.slower[2]

    slow, fast = (LinkUsage(sender=0, receiver=1, bytes_=1000, seconds=s) for s in (2e-3, 1e-4))
    slow_links = seen.timed([fast, slow])
    assert slow_links.plan(range(4), 4).placement.configuration == "1"
    assert slow_links.timed([fast]).seconds(plan) < 0.5 * slow_links.seconds(plan)
    # Nobody knows what is usual without a profile.
    unknown = Replanner(document, captured.graph)
    assert unknown.corrected(plan, usual) is unknown


def _measurement(plan: ExecutionPlan, busy_milliseconds: list[float]) -> Measurement:
    workers = [
        WorkerUsage(
            worker=worker,
            stage=plan.pipeline.stage_of(worker),
            busy_seconds=1e-3 * milliseconds,
            waiting_seconds=0.0,
            peak_memory_bytes=0,
        )
        for worker, milliseconds in enumerate(busy_milliseconds)
    ]
    return Measurement(
        seconds_per_minibatch=0.1,
        median_seconds=0.1,
        standard_deviation_seconds=0.0,
        minibatches=20,
        workers=tuple(workers),
    )
