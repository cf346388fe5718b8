"""Measuring on live workers, and what happens when they fail."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from drlpp.capturing.capture import CapturedModel
from drlpp.cli.timelines import TimelineRun
from drlpp.errors import InvalidInput, InvalidPlacement, OutOfMemory, WorkerLost
from drlpp.placement.measurement import Measurement, is_steady
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession, RunOptions
from drlpp.runtime.ipc.protocol import Progress, RunResult
from drlpp.runtime.session.measuring import measurement_of, time_ways
from drlpp.schedule.analysis.window import Window
from drlpp.schedule.method import Method
from drlpp.schedule.schedule import Schedule
from drlpp.schedule.timeline import spans_of, time_use
from tests.support.processes import facts_of, limit_memory


@pytest.fixture(scope="module")
def session(captured: CapturedModel) -> Iterator[ClusterSession]:
    with ClusterSession(captured, workers=4) as session:
        yield session


def straight(captured: CapturedModel, *stages: int) -> Placement:
    operators, parts = len(captured.graph), max(stages) + 1
    return Placement.from_assignment([parts * i // operators for i in range(operators)], stages)


def test_placements_one_after_another_on_the_same_workers(
    captured: CapturedModel, session: ClusterSession
) -> None:
    first = session.measure(straight(captured, 0, 1, 2, 3), minibatches=6)
    processes = session.process_ids
    others = [
        session.measure(straight(captured, *accelerators), minibatches=6)
        for accelerators in [(2, 1, 1, 0), (0,)]
    ]
    assert session.process_ids == processes
    for outcome in [first, *others]:
        assert isinstance(outcome, Measurement)
        assert outcome.seconds_per_minibatch > 0
        assert outcome.minibatches >= 6
    assert isinstance(first, Measurement)
    assert [usage.stage for usage in first.workers] == [0, 1, 2, 3]
    window = first.seconds_per_minibatch * first.minibatches
    for usage in first.workers:
        assert 0 < usage.busy_seconds <= window
        assert usage.busy_seconds + usage.waiting_seconds <= window * 1.001
        assert usage.peak_memory_bytes > 1e6


def test_timeline_is_the_schedule_as_it_ran(
    captured: CapturedModel, session: ClusterSession
) -> None:
    placement = straight(captured, 0, 1)
    outcome = session.measure(placement, minibatches=5)
    assert {timed.worker for timed in session.timeline} == {0, 1}
    for worker in (0, 1):
        mine = [timed for timed in session.timeline if timed.worker == worker]
        assert all(a.end <= b.start for a, b in pairwise(mine))
    assert min(timed.start for timed in session.timeline) == 0
    # Where the time goes is what was measured.
    pipeline = placement.pipeline(captured.graph)
    window = Window.plan(pipeline, 5, session.method)
    schedule = session.method.schedule_for(pipeline, window.minibatches)
    hosts = dict.fromkeys((0, 1), "localhost")
    recording = TimelineRun("", "s", session.timeline, schedule, window, hosts)
    begin, end = recording.bounds
    assert isinstance(outcome, Measurement)
    took = outcome.seconds_per_minibatch * outcome.minibatches
    # Who is last at the end took the slowest worker's pace at most, who was last at the begin
    # the fastest's at least.
    assert outcome.steadiness is not None
    assert outcome.steadiness * took * (1 - 1e-9) <= end - begin <= took * (1 + 1e-9)
    uses = time_use(spans_of(session.timeline), begin, end)
    for use, usage in zip(uses, outcome.workers, strict=True):
        assert use.utilisation * (end - begin) == pytest.approx(usage.busy_seconds)


def test_a_pipeline_is_measured_once_it_is_steady(
    captured: CapturedModel, session: ClusterSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it seems to be steady at once, from the third run on, or never."""
    monkeypatch.setattr("drlpp.runtime.session.measuring.is_steady", is_steady)
    warm_ups: list[int] = []
    looks: list[float] = []

    def looked_at(schedule: Schedule, results: dict[int, RunResult], window: Window) -> Measurement:
        warm_ups.append(window.warm_up)
        found = measurement_of(schedule, results, window)
        return found.model_copy(update={"steadiness": looks[len(warm_ups) - 1]})

    monkeypatch.setattr("drlpp.runtime.session.measuring.measurement_of", looked_at)
    first = Window.plan(straight(captured, 0, 1).pipeline(captured.graph), 5, session.method)
    for looks[:], runs, steadiness in [
        ([1.0], 1, 1.0),
        ([0.5, 0.5, 1.0], 3, 1.0),
        ([0.5] * 3, 3, 0.5),
    ]:
        warm_ups.clear()
        outcome = session.measure(straight(captured, 0, 1), minibatches=5)
        assert isinstance(outcome, Measurement)
        assert warm_ups == [first.warm_up + number * first.length for number in range(runs)]
        assert outcome.steadiness == steadiness
        assert outcome.links, "they are timed after the last run"


def test_messages_are_timed_on_the_ways_that_were_used(
    captured: CapturedModel, session: ClusterSession
) -> None:
    """1F1B-RR: all replicas of a stage exchange messages with the next; three of them a ring."""
    activation = 8 * 16 * 4
    placement = straight(captured, 0, 0, 0, 1)
    outcome = session.measure(placement, minibatches=4)
    assert isinstance(outcome, Measurement)
    routes = {(link.sender, link.receiver): link.bytes_ for link in outcome.links}
    messages = {route for replica in range(3) for route in ((replica, 3), (3, replica))}
    ring = {(0, 1), (1, 2), (2, 0)}
    assert set(routes) == messages | ring
    assert len(outcome.links) == len(routes)
    assert {routes[route] for route in messages} == {activation}
    # All gradients of a stage this small are one bucket, with a number for every parameter.
    operators = [captured.graph.operators[op] for op in placement.stages[0].operators]
    parameters = sum(operator.parameter_bytes for operator in operators)
    layers = sum(operator.parameter_bytes > 0 for operator in operators)
    assert {routes[route] for route in ring} == {-(-(parameters + 2 * layers * 4) // 3)}
    assert all(0 < link.seconds < 5 for link in outcome.links)
    # The deployment stays as it was.
    deployment = session.deploy(straight(captured, 0, 0, 1))
    for _ in range(2):
        _, results = session.run(deployment, 4)
        assert len(time_ways(session, deployment.plan.pipeline, results)) == 6


def test_progress_is_told_while_a_run_goes_on(
    captured: CapturedModel, session: ClusterSession
) -> None:
    seen: list[Progress] = []
    deployment = session.deploy(straight(captured, 0, 1))
    while not seen:
        session.run(deployment, 300, on_progress=seen.append)
    through = [progress.through for progress in seen]
    assert through == sorted(set(through))
    assert 0 < through[0] <= through[-1] <= 300
    assert all(progress.loss > 0 for progress in seen)


def test_a_worker_that_a_placement_leaves_idle_gives_up_its_stage(
    captured: CapturedModel, session: ClusterSession
) -> None:
    session.deploy(straight(captured, 0, 1))
    with_stage = _open_files(session.process_ids[1])
    deployment = session.deploy(straight(captured, 0))
    assert _open_files(session.process_ids[1]) < with_stage, "its connections are closed"
    session.run(deployment, 2)


def _open_files(process: int) -> int:
    return len(os.listdir(f"/proc/{process}/fd"))


def test_a_worker_that_dies_with_its_stage_is_told(
    captured: CapturedModel, session: ClusterSession
) -> None:
    deployment = session.deploy(straight(captured, 0, 1))
    os.kill(session.process_ids[1], signal.SIGKILL)
    time.sleep(0.2)
    with pytest.raises(WorkerLost, match=r"worker 1 \(stage 1\) was killed by SIGKILL"):
        session.run(deployment, 4)
    for replace in (lambda: None, session.prepare):
        replace()
        with pytest.raises(WorkerLost, match="its stage with it"):
            session.run(deployment, 4)
    assert isinstance(session.measure(straight(captured, 0, 1), minibatches=4), Measurement)
    with pytest.raises(InvalidInput, match="deployed or measured since; deploy this one again"):
        session.run(deployment, 4)


def test_out_of_memory_is_told_apart(captured: CapturedModel) -> None:
    with ClusterSession(captured, workers=1) as session:
        placement = straight(captured, 0)
        session.measure(placement, minibatches=2)
        # The worker may hold what it has, and then less than the samples take.
        limit_memory(session.process_ids[0])
        targets = torch.zeros(2_000_000, dtype=torch.int64)
        with pytest.raises(OutOfMemory, match="worker 0"):
            session.use_samples([torch.zeros(2_000_000, 16)], targets)
        outcome = session.measure(placement, minibatches=2)
    assert isinstance(outcome, Measurement)


def test_what_cannot_be_run_is_refused(captured: CapturedModel) -> None:
    options = RunOptions(order=torch.arange(8).reshape(1, 8))
    with ClusterSession(captured, 3) as session:
        first = session.deploy(straight(captured, 0, 1))
        other = session.deploy(straight(captured, 1, 0))
        processes, folder = session.process_ids, session.folder
        beyond = straight(captured, 0).stages[0].model_copy(update={"accelerators": (7,)})
        seven = straight(captured, 0).model_copy(update={"stages": (beyond,)})
        replaced = "1-1, any more: another one was deployed or measured since"
        refusals: list[tuple[Callable[[], object], type[Exception], str]] = [
            (lambda: session.run(first, 4), InvalidInput, replaced),
            (lambda: session.evaluate(first, 1, options), InvalidInput, replaced),
            (lambda: session.collect(first), InvalidInput, replaced),
            (lambda: session.measure(seven), InvalidPlacement, "accelerator 7"),
            (lambda: session.measure(other.plan.placement, 0), InvalidInput, "at least 1"),
            (
                lambda: session.measure(other.plan.placement, method=Method(policy="sync")),
                InvalidInput,
                "use schedule 1f1b-flush or gpipe or zb-h1",
            ),
        ]
        for call, error, words in refusals:
            with pytest.raises(error, match=words):
                call()
        session.run(other, 4)
    assert not folder.exists()
    assert not [p for p in processes if Path(f"/proc/{p}").exists()]
    session.close()
    for call in [lambda: session.run(other, 4), lambda: session.measure(other.plan.placement)]:
        with pytest.raises(InvalidInput, match="this session is closed"):
            call()


@pytest.mark.slow
def test_nothing_is_left_by_deployments_and_runs(captured: CapturedModel) -> None:
    with ClusterSession(captured, workers=3) as session:

        def held() -> tuple[object, ...]:
            found = map(facts_of, session.process_ids)
            files = len([*session.folder.iterdir()])
            return *((facts.threads, facts.open_files) for facts in found), files, store.num_keys()

        seen, memory = [], []
        for _ in range(8):
            for stages in [(0, 1, 2), (0, 0, 1), (0, 1, 1), (0, 0, 0)]:
                session.deploy(straight(captured, *stages))
            assert isinstance(session.measure(straight(captured, 0, 1, 2), 2), Measurement)
            store: Any = session._store
            seen.append(held())
            memory.append([facts_of(process).memory_bytes for process in session.process_ids])
    assert seen[2:] == [seen[2]] * 6
    # A worker of a toy is still settling after its second round.
    assert all(late < 1.05 * early for early, late in zip(memory[1], memory[-1], strict=True))
