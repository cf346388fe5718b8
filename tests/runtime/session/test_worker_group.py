"""What a group of workers makes of hosts that say nothing."""

from collections.abc import Container, Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from drlpp.capturing.capture import capture
from drlpp.errors import HostLost, ModelError, RunFailure, TrialTimeout, WorkerLost
from drlpp.models.model_reference import ModelReference
from drlpp.runtime.device.devices import DeviceFacts
from drlpp.runtime.hosts.host import Answered, Event, Hosts, WorkerHost
from drlpp.runtime.ipc.protocol import Load, Release, StoreAddress, WorkerSpec
from drlpp.runtime.ipc.time_limits import DEFAULT_TIME_LIMITS, TimeLimits
from drlpp.runtime.session import worker_group
from drlpp.runtime.session.worker_group import WorkerGroup
from drlpp.specs.cluster import DeviceChoice


def hosted(
    host: WorkerHost,
    limits: TimeLimits = DEFAULT_TIME_LIMITS,
    device: DeviceChoice = DeviceChoice.CPU,
) -> WorkerGroup:
    """A group whose workers run on ``host``; there they have been started, if they are to."""
    captured = capture(ModelReference.named("tests.support.models.small:perceptron"))
    speeds = [1.0] * len(host.workers)
    return WorkerGroup(captured, speeds, device, limits, place=lambda *_: Hosts((host,)))


class SilentHost(WorkerHost):
    """Has a worker that never answers; to ``kill`` it may be too much for the network."""

    workers = (0,)
    name = address = machine = "127.0.0.1"
    cores = (0,)

    def __init__(self, connection: Connection, *, cut_off: bool = False) -> None:
        self._connection = connection
        self._cut_off = cut_off

    process_ids = property(lambda self: [1])  # type: ignore[assignment]

    def open_store(self) -> StoreAddress:
        return StoreAddress(self.address, 1, "token")

    def check(self) -> None: ...

    def start(self, posts: Sequence[WorkerSpec]) -> None: ...

    def finish_start(self) -> None: ...

    def is_whole(self) -> bool:
        return True

    def send(self, worker: int, command: object) -> None: ...

    def waitables(self) -> list[Connection]:
        return [self._connection]

    def events(self, ready: Container[object]) -> list[Event]:
        return []

    def publish(self, path: Path) -> None: ...

    def remove(self, file: str) -> None: ...

    def fetch(self, file: str) -> Path:
        return Path(file)

    def kill(self) -> None:
        if self._cut_off:
            raise HostLost("host elsewhere cannot be reached")

    def close(self) -> None: ...


@pytest.fixture
def connection() -> Iterator[Connection]:
    ours, theirs = Pipe()
    with ours, theirs:
        yield ours


@pytest.mark.parametrize(("cut_off", "failure"), [(False, TrialTimeout), (True, HostLost)])
def test_a_host_that_is_cut_off_is_told_as_such_by_its_silent_workers(
    connection: Connection, cut_off: bool, failure: type[RunFailure]
) -> None:
    group = hosted(SilentHost(connection, cut_off=cut_off), TimeLimits(answer_seconds=0.05))
    with pytest.raises(failure):
        group.command({0: Release()})
    group.close()


class TellingHost(SilentHost):
    """Has two workers, whose answers to a command are heard one after the other."""

    workers = (0, 1)

    def __init__(self, connection: Connection, *answers: Answered) -> None:
        super().__init__(connection)
        self._will_answer = list(answers)
        self._answers: list[Answered] = []

    def send(self, worker: int, command: object) -> None:
        # What was heard before a command is no answer to it.
        self._answers += self._will_answer
        self._will_answer = []

    def events(self, ready: Container[object]) -> list[Event]:
        return [self._answers.pop(0)] if self._answers else []


CONNECTION = Answered(0, WorkerLost("worker 0 lost its connection to another"))
MODEL = Answered(0, ModelError("worker 0: RuntimeError: size mismatch"))
GPU = Answered(1, WorkerLost("worker 1 lost its GPU (unknown error)", [1]))


@pytest.mark.parametrize("first", [CONNECTION, MODEL])
def test_a_worker_that_has_lost_its_gpu_is_the_cause_of_what_others_say_before_it(
    connection: Connection, first: Answered
) -> None:
    group = hosted(TellingHost(connection, first, GPU))
    with pytest.raises(WorkerLost, match="lost its GPU") as lost:
        group.command({0: Release(), 1: Release()})
    assert lost.value.workers == {1}
    group.close()


class BrokenHost(TellingHost):
    """Finds no GPU when its workers are started for the second time."""

    has_gpus = True
    gpus = (DeviceFacts("cuda", "NVIDIA H200", "a"), DeviceFacts("cuda", "NVIDIA H200", "b"))

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.asked_for: list[str] = []

    def is_whole(self) -> bool:
        return False

    def send(self, worker: int, command: object) -> None:
        assert isinstance(command, Load)
        self.asked_for.append(command.device)
        facts = self.gpus[worker] if self.has_gpus or not worker else DeviceFacts()
        self._answers.append(Answered(worker, facts))


def test_a_gpu_that_is_gone_loses_its_worker_which_goes_on_on_no_processor(
    connection: Connection,
) -> None:
    host = BrokenHost(connection)
    group = hosted(host, device=DeviceChoice.CUDA)
    group.prepare()
    host.has_gpus = False
    for _ in range(2):
        with pytest.raises(HostLost, match="there is no GPU any more for worker 1") as lost:
            group.prepare()
        assert lost.value.workers == {1}
    # Whoever has had none is refused by the worker itself.
    assert host.asked_for == ["cuda", "cuda", "auto", "auto"]
    group.give_up(lost.value.workers)
    group.prepare()
    assert group.present == (0,)
    group.close()


class LateHost(SilentHost):
    """Has a worker that answers when it is asked for events the ``count``-th time."""

    def __init__(self, connection: Connection, count: int) -> None:
        super().__init__(connection)
        self._count = count

    def events(self, ready: Container[object]) -> list[Event]:
        self._count -= 1
        return [Answered(0, None)] if self._count <= 0 else []


def test_nobody_waits_while_the_controller_is_stopped(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seconds of a stop (Ctrl-Z) count neither as silence now, nor as usual later."""
    limits = TimeLimits(answer_seconds=10)
    patient, impatient = (hosted(LateHost(connection, count), limits) for count in (5, 50))
    clock, late = [0.0], iter([0.0, 500.0, 0.0])

    def wait(_waitables: object, seconds: float) -> list[object]:
        clock[0] += seconds + next(late, 0.0)
        return []

    monkeypatch.setattr(worker_group.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(worker_group.mp_connection, "wait", wait)
    patient.command({0: Release()})
    assert patient.stops == 1
    assert patient.longest_silence_seconds < 10
    with pytest.raises(TrialTimeout):
        impatient.command({0: Release()})
    monkeypatch.undo()
    for group in (patient, impatient):
        group.close()
