"""The memory of tensors, counted as operators make them, and a limit of it on live workers."""

import pytest
import torch
from torch import nn

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.costs.memory import MemoryModel
from drlpp.costs.memory_count import MemoryCount, repeats_after
from drlpp.costs.workload import Workload
from drlpp.errors import OutOfMemory
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import FailedMeasurement, Measurement, Outcome
from drlpp.placement.placement import Placement
from drlpp.planners import PlanningProblem
from drlpp.planners.map import ways_of_training
from drlpp.racing.contenders import Contender
from drlpp.racing.plain import measure_plain
from drlpp.racing.rivals import PLAIN
from drlpp.runtime import ClusterSession
from drlpp.runtime.hosts.session_hosts import memory_of
from drlpp.runtime.ipc.protocol import ParallelWay
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import build_schedule
from drlpp.simulator import simulate
from drlpp.specs.cluster import Cluster, Host, Link
from drlpp.specs.optimizer_spec import OptimizerSpec

MODEL = "tests.support.models.small:perceptron"
ADAMW = OptimizerSpec.parse("adamw")
KILOBYTE = 1024
LINK = Link(bandwidth_bytes_per_second=1e12)


def test_what_is_made_counts_until_it_is_freed() -> None:
    there = torch.zeros(256)
    count = MemoryCount(10 * KILOBYTE, "worker 0 (stage 1)")
    with count:
        view = there[:16].view(4, 4)
        made = torch.ones(256)
        other = made[8:]
        assert count.bytes_ == KILOBYTE, "views have no memory of their own"
        parts = torch.split(torch.zeros(512), 256)
        assert count.bytes_ == 3 * KILOBYTE
    del made
    assert count.bytes_ == 3 * KILOBYTE, "a view of it is left"
    del other, parts
    assert count.bytes_ == 0
    assert count.peak_memory_bytes() == 3 * KILOBYTE
    count.hold([there, view])
    assert count.bytes_ == KILOBYTE
    with count, pytest.raises(OutOfMemory, match=r"stage 1\) needs 11,264 bytes .* 10,240 bytes"):
        torch.zeros(2560)
    assert count.bytes_ == KILOBYTE


def test_a_backward_counts() -> None:
    layers = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(4)))
    count = MemoryCount(1e9, "here")
    count.hold(layers.parameters())
    with count:
        layers(torch.ones(2, 64)).sum().backward()
    assert 8 * 64 * 64 * 4 <= count.bytes_ < count.peak_memory_bytes() < 9 * 64 * 64 * 4


def test_memory_repeats_itself_when_a_pipeline_has_been_full() -> None:
    def after(schedule: str, *stages: int, **options: int) -> list[int | None]:
        pipeline = Pipeline.straight(*stages)
        built = build_schedule(pipeline, 12, schedule, **options)
        return [repeats_after(built.actions[worker]) for worker in pipeline.workers]

    assert after("1f1b", 1) == [2]
    assert after("1f1b", 1, 1, 1, 1) == [4, 3, 2, 2]
    assert after("1f1b", 2) == [4, 4]
    assert after("gpipe", 1, 1, microbatches=4) == [2, 2]
    assert repeats_after(build_schedule(Pipeline.straight(1), 1, "1f1b").actions[0]) is None


def test_the_memory_of_every_worker_is_known() -> None:
    lines = Host(name="a", accelerators=2, memory_bytes=5), Host(name="b", accelerators=1)
    hosts = Cluster(hosts=lines, within_host=LINK, between_hosts=LINK)
    assert memory_of(None, 2) == (None, None)
    assert memory_of(hosts, 3) == (5, 5, None)
    assert memory_of(hosts.part((0,)), 3) == (5, 5, 5)


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named(MODEL, width=64))


def limited(captured: CapturedModel, *limits: float) -> ClusterSession:
    lines = (Host(name="here", accelerators=1, memory_bytes=limit) for limit in limits)
    cluster = Cluster(hosts=tuple(lines), within_host=LINK)
    return ClusterSession(captured, 3, optimizer=ADAMW, device="cpu", links=cluster)


def peaks(outcome: Outcome) -> list[int]:
    assert isinstance(outcome, Measurement)
    return [usage.peak_memory_bytes for usage in outcome.workers]


def test_a_stage_that_needs_more_fails_and_the_session_goes_on(captured: CapturedModel) -> None:
    one_each = [1] * len(captured.graph)
    alone, two = (Placement.straight(one_each, range(stages)) for stages in (1, 2))
    with limited(captured, 1e9, 1e9, 1e9) as session:
        needed, of_two = peaks(session.measure(alone, 4)), peaks(session.measure(two, 4))
        plain = measure_plain(session, Contender(found_by=PLAIN, method=Method()), 4)
        (by_plain,) = peaks(plain)
        losses = {w: r.losses for w, r in session.run(session.deploy(two), 6)[1].items()}
    assert needed[0] < sum(of_two)
    with limited(captured, needed[0] - 1, of_two[1], 2e5) as session:
        assert session.memory_bytes == (needed[0] - 1, of_two[1], 2e5)
        failed = session.measure(alone, 4)
        assert isinstance(failed, FailedMeasurement)
        assert failed.failure == "out of memory"
        assert failed.reason == (
            f"worker 0 (stage 0) needs {needed[0]:,} bytes or more, and its accelerator has "
            f"{needed[0] - 1:,} bytes of memory"
        )
        assert peaks(session.measure(two, 4)) == of_two
        found = {w: r.losses for w, r in session.run(session.deploy(two), 6)[1].items()}
        assert found == losses, "counting changes nothing"
        assert isinstance(session.measure(alone, 4), FailedMeasurement)
    with limited(captured, 2e4, 2e4, by_plain - 1) as session:
        one = Contender(found_by=PLAIN, method=Method())
        failed = measure_plain(session, one, 4)
        assert isinstance(failed, FailedMeasurement)
        assert (failed.failure, "plain PyTorch needs" in failed.reason) == ("out of memory", True)
        with pytest.raises(OutOfMemory, match="worker 0"):
            session.deploy(alone)


def test_what_is_counted_was_predicted(captured: CapturedModel) -> None:
    """Copies of weights where they are kept, and gradients when they are there."""
    flushing = {"policy": "sync", "microbatches": 4}
    one_each = [1] * len(captured.graph)
    one, two = (Placement.straight(one_each, range(stages)) for stages in (1, 2))
    replicas = Placement.of([range(len(captured.graph))], [range(3)])
    with limited(captured, 1e9, 1e9, 1e9) as session:
        assert session.links is not None
        profile = session.profile(repeats=1)[0]
        for placement, method in (
            (two, Method()),
            (one, Method()),
            (replicas, Method()),
            (two, Method(policy="xpipe")),
            (one, Method(policy="spectrain")),
            (two, Method(policy="pipemare", annealing_minibatches=8)),
            (two, Method(microbatches=4)),
            (two, Method(schedule="1f1b-flush", **flushing)),
            (two, Method(schedule="zb-h1", **flushing)),
        ):
            found = peaks(session.measure(Candidate(placement, method), 4))
            memory = MemoryModel.of(method, ADAMW)
            workload = Workload.of(profile, method)
            played = simulate(workload, session.links, placement, method, memory=memory)
            assert found == pytest.approx(played.memory_bytes, rel=0.05), str(method)


def test_what_copies_on_stages_and_torchs_shards_take_was_predicted() -> None:
    sizes = {"hidden": 64, "layers": 3, "heads": 2, "positions": 32, "vocabulary": 2000}
    language = ModelReference.named("gpt2", batch_size=4, sequence_length=32, **sizes)
    captured = capture(language)
    two = Placement.straight([1] * len(captured.graph), range(2))
    with limited(captured, 1e9, 1e9, 1e9) as session:
        assert session.links is not None
        profile = session.profile(repeats=1)[0]
        for method in Method(), Method(schedule="1f1b-flush", policy="sync", microbatches=4):
            found = peaks(session.measure(Candidate(two, method), 4))
            memory, workload = MemoryModel.of(method, ADAMW), Workload.of(profile, method)
            played = simulate(workload, session.links, two, method, memory=memory)
            assert found == pytest.approx(played.memory_bytes, rel=0.1), str(method)
        problem = PlanningProblem.profiled(profile, session.links, Method(), ADAMW)
        ways = ways_of_training(problem, profile.batch_size)
        torchs: tuple[ParallelWay, ...] = ("ddp", "zero-1", "zero-2", "fsdp")
        for way in torchs:
            found = peaks(session.measure_parallel(way, 2, 2))
            predicted = ways.of(way, (0, 1)).memory_bytes
            assert found == pytest.approx([predicted] * 2, rel=0.1), way
