"""What a group of workers makes of silent hosts, and the cluster that its hosts are."""

from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import HostLost, ModelError, RunFailure, TrialTimeout, WorkerLost
from drlpp.runtime.device.devices import DeviceFacts
from drlpp.runtime.hosts.host import Ended, Event, Hosts, LocalHost, WorkerHost
from drlpp.runtime.ipc.protocol import Load, Release, WorkerSpec
from drlpp.runtime.ipc.time_limits import TimeLimits
from drlpp.runtime.session import worker_group
from drlpp.runtime.session.measured_cluster import (
    crowded_host,
    ends_to_measure,
    session_cluster,
)
from drlpp.runtime.session.worker_group import WorkerGroup
from drlpp.specs.cluster import DeviceChoice, Link

Hosted = Callable[..., tuple[Any, WorkerGroup]]


@pytest.fixture
def hosted(captured: CapturedModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosted]:
    """Makes a host whose workers have been started and never answer, and the group of them."""
    monkeypatch.setattr(worker_group, "_LOOK_SECONDS", 0.01)
    groups: list[WorkerGroup] = []

    def make(
        workers: int = 1, limits: TimeLimits | None = None, device: DeviceChoice = DeviceChoice.CPU
    ) -> tuple[Any, WorkerGroup]:
        host = Mock(WorkerHost, workers=tuple(range(workers)), address="", machine="", cores=(0,))
        host.name = "somewhere"
        host.lost = None
        host.waitables.return_value = [connection]
        host.events.return_value = []
        speeds = [1.0] * workers
        groups.append(
            WorkerGroup(
                captured,
                speeds,
                device=device,
                time_limits=limits or TimeLimits(),
                place=lambda *_: Hosts([host]),
            )
        )
        return host, groups[-1]

    connection, other = Pipe()
    with connection, other:
        yield make
        for group in groups:
            group.close()


@pytest.mark.parametrize(("cut_off", "failure"), [(False, TrialTimeout), (True, HostLost)])
def test_a_host_that_is_cut_off_is_told_as_such_by_its_silent_workers(
    hosted: Hosted, cut_off: bool, failure: type[RunFailure]
) -> None:
    """To kill its worker may be too much for the network."""
    host, group = hosted(limits=TimeLimits(answer_seconds=0.05))
    if cut_off:
        host.kill.side_effect = HostLost("host elsewhere cannot be reached")
    with pytest.raises(failure):
        group.command({0: Release()})


CONNECTION = (0, WorkerLost("worker 0 lost its connection to another"))
MODEL = (0, ModelError("worker 0: RuntimeError: size mismatch"))
GPU = (1, WorkerLost("worker 1 lost its GPU (unknown error)", [1]))


@pytest.mark.parametrize("first", [CONNECTION, MODEL])
def test_a_worker_that_has_lost_its_gpu_is_the_cause_of_what_others_say_before_it(
    hosted: Hosted, first: Event
) -> None:
    host, group = hosted(2)
    # What was heard before a command is no answer to it.
    host.events.side_effect = [[], [first], [GPU]]
    with pytest.raises(WorkerLost, match="lost its GPU") as lost:
        group.command({0: Release(), 1: Release()})
    assert lost.value.workers == {1}


def test_a_gpu_that_is_gone_loses_its_worker_which_goes_on_on_no_processor(hosted: Hosted) -> None:
    """Worker 1 finds none when it is started for the second time."""
    host, group = hosted(2, device=DeviceChoice.CUDA)
    gpus = [DeviceFacts("cuda", "NVIDIA H200", uuid) for uuid in "ab"]
    asked_for: list[str] = []
    answers: list[Event] = []

    def start(specs: list[WorkerSpec]) -> None:
        asked_for.extend(spec.device for spec in specs)

    def send(worker: int, _command: Load) -> None:
        answers.append((worker, gpus[worker]))

    host.start.side_effect, host.send.side_effect = start, send
    host.events.side_effect = lambda ready: [answers.pop(0)] if answers else []
    group.prepare()
    gpus[1] = DeviceFacts()
    answers.append((1, Ended("was killed")))
    for _ in range(2):
        with pytest.raises(HostLost, match="there is no GPU any more for worker 1") as lost:
            group.prepare()
        assert lost.value.workers == {1}
    # Whoever has had none is refused by the worker itself.
    assert asked_for == ["cuda", "cuda", "auto", "auto"]
    group.give_up(lost.value.workers)
    group.prepare()
    assert group.present == (0,)


def test_nobody_waits_while_the_controller_is_stopped(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seconds of a stop (Ctrl-Z) count neither as silence now, nor as usual later."""
    clock, late = [0.0], iter([0.0, 500.0, 0.0])

    def wait(_waitables: object, seconds: float) -> list[object]:
        clock[0] += seconds + next(late, 0.0)
        return []

    monkeypatch.setattr(worker_group.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(worker_group.mp_connection, "wait", wait)
    (host, patient), (_, impatient) = (hosted(limits=TimeLimits(answer_seconds=10)) for _ in "12")
    host.events.side_effect = [[]] * 4 + [[(0, None)]]
    patient.command({0: Release()})
    assert patient.stops == 1
    assert patient.longest_silence_seconds < 10
    with pytest.raises(TrialTimeout):
        impatient.command({0: Release()})


def test_a_host_that_is_lost_is_looked_for_once_its_workers_are_missed(hosted: Hosted) -> None:
    host, group = hosted()
    host.is_missed, host.has_returned = False, False
    host.lost = HostLost("gone")
    group.given_up = {0}
    assert group.take_back() == ()
    assert host.is_missed
    host.has_returned = True
    assert group.take_back() == (0,)
    assert group.given_up == set()


def test_hosts_become_a_cluster() -> None:
    a, b, c = ("a", (0, 1)), ("b", (0, 1, 2, 3)), ("c", (0,))
    x, y, z = _Named((0, 1, 2), "x", *a), _Named((3,), "y", *b), _Named((4,), "z", *c)
    places = [x, x, x, y, z]
    assert ends_to_measure(places) == [(0, 1), (0, 3), (0, 4)]
    inside, quick, slow = (Link(bandwidth_bytes_per_second=b) for b in (1e10, 1e9, 1e8))
    links = {(0, 1): inside, (0, 3): quick, (0, 4): slow}
    cluster = session_cluster(places, [DeviceFacts()] * 5, (1.0,) * 5, links)
    assert cluster.host_of == (0, 0, 0, 1, 2)
    assert cluster.link(0, 2) == inside
    assert cluster.link(1, 3) == quick
    assert cluster.link(3, 4) == cluster.link(0, 4) == slow
    note = crowded_host((1.0,) * 5, places, [DeviceFacts()] * 5)
    assert note is not None
    assert "3 workers share 2 cores of x" in note
    emulated = session_cluster(places, [DeviceFacts()] * 5, (0.5, 0.25, 0.5, 0.5, 0.5), links)
    assert emulated.speeds == (0.5, 0.25, 0.5, 0.5, 0.5)
    assert emulated.link(0, 4) == slow
    assert crowded_host((0.5, 0.25, 0.5, 0.5, 0.5), places, [DeviceFacts()] * 5) is None
    gpus = [DeviceFacts("cuda", "GPU", name, 80) for name in ("a", "b", "b", "c", "d")]
    on_gpus = session_cluster(places, gpus, (1.0,) * 5, links)
    assert on_gpus.devices == ("cuda",) * 5
    assert crowded_host((1.0,) * 5, places, gpus) is None
    assert on_gpus.memory_bytes == (40, 40, 40, 80, 80)
    alone = [_Named((0,), "x", *c)]
    assert ends_to_measure(alone) == []
    assert session_cluster(alone, [DeviceFacts()], (1.0,), {}).accelerators == 1


class _Named(LocalHost):
    def __init__(
        self, workers: tuple[int, ...], name: str, machine: str, cores: tuple[int, ...]
    ) -> None:
        super().__init__(workers, Path("unused"), name)
        self.machine, self.cores = machine, cores
