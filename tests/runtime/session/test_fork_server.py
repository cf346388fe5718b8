"""The server that workers are forked from may be killed or stopped; sessions go on."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing import forkserver, util
from pathlib import Path
from typing import Any

import pytest

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.errors import CannotStart
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import Measurement
from drlpp.runtime import ClusterSession, TimeLimits
from drlpp.runtime.hosts import local_host
from drlpp.runtime.ipc.session_folder import keep_socket_folder
from tests.support.processes import wait_until_gone
from tests.support.training.pipelines import in_a_row


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:perceptron"))


@pytest.fixture
def session(captured: CapturedModel, tmp_path: Path) -> Iterator[ClusterSession]:
    """Whose workers are gone when it is closed."""
    with ClusterSession(captured, workers=2) as session:
        session.measure(in_a_row(captured.graph, 0, 1), 4)
        seen = set(session.process_ids)
        yield session
        seen |= set(session.process_ids)
    assert not wait_until_gone(seen, tmp_path)


def _signal_server(number: int = signal.SIGKILL) -> int:
    server: Any = forkserver._forkserver
    os.kill(server._forkserver_pid, number)
    return int(server._forkserver_pid)


@pytest.mark.system
def test_killed_between_measurements(captured: CapturedModel, session: ClusterSession) -> None:
    placement = in_a_row(captured.graph, 0, 1)
    before = set(session.process_ids)
    _signal_server()
    time.sleep(0.2)
    assert isinstance(session.measure(placement, 4), Measurement)
    assert not before & set(session.process_ids)
    # Without the server, nobody but us has told them to end.
    assert not [process for process in before if Path(f"/proc/{process}/exe").exists()]


@pytest.mark.system
def test_killed_during_a_measurement(
    captured: CapturedModel, session: ClusterSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    placement = in_a_row(captured.graph, 0, 1)
    execute = session.worker_group.execute
    strike = threading.Timer(0.1, _signal_server)

    def execute_and_strike(*arguments: Any) -> dict[int, Any]:
        monkeypatch.undo()
        strike.start()
        return execute(*arguments)

    monkeypatch.setattr(session.worker_group, "execute", execute_and_strike)
    with pytest.warns(UserWarning, match="the server that workers are forked from has ended"):
        outcome = session.measure(placement, 600)
    strike.join()
    assert isinstance(outcome, Measurement)


@pytest.mark.system
def test_killed_before_a_worker_is_forked(
    captured: CapturedModel, session: ClusterSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    placement = in_a_row(captured.graph, 0, 1)
    warm_up = local_host.warm_up

    def warm_up_and_kill() -> None:
        warm_up()
        server: Any = forkserver._forkserver
        # It looks as if it lived, as it does to whoever asked a moment too early.
        monkeypatch.setattr(forkserver._forkserver, "ensure_running", lambda: None)
        os.kill(server._forkserver_pid, signal.SIGKILL)
        os.waitid(os.P_PID, server._forkserver_pid, os.WEXITED | os.WNOWAIT)

    with monkeypatch.context() as patch:
        patch.setattr(local_host, "warm_up", warm_up_and_kill)
        os.kill(session.process_ids[0], signal.SIGKILL)
        time.sleep(0.2)
        with (
            pytest.warns(UserWarning, match="it is started again"),
            pytest.raises(CannotStart, match="could not be started: the server"),
        ):
            session.measure(placement, 4)
    monkeypatch.undo()
    assert isinstance(session.measure(placement, 4), Measurement)


def test_a_folder_for_sockets_that_was_removed_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "sockets"
    monkeypatch.setattr(util, "get_temp_dir", lambda: str(folder))
    # None of them waits for another's lock.
    threads = [threading.Thread(target=keep_socket_folder, daemon=True) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert list(folder.iterdir()) == [folder / "drlpp-lock"]


@pytest.fixture
def frozen_server(
    captured: CapturedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ClusterSession]:
    """A session whose workers were forked from a server that is stopped by now."""
    monkeypatch.setattr(TimeLimits, "end_seconds", 2.0)
    with ClusterSession(captured, 2) as session:
        session.measure(in_a_row(captured.graph, 0, 1), 4)
        seen = session.process_ids
        frozen = _signal_server(signal.SIGSTOP)
        yield session
        seen += session.process_ids
    assert not wait_until_gone({*seen, frozen}, tmp_path)


@pytest.mark.system
def test_a_frozen_fork_server_is_replaced(
    captured: CapturedModel, frozen_server: ClusterSession
) -> None:
    placement = in_a_row(captured.graph, 0, 1)
    assert isinstance(frozen_server.measure(placement, 4), Measurement)
    os.kill(frozen_server.process_ids[0], signal.SIGKILL)
    frozen_server.measure(placement, 4)
    assert isinstance(frozen_server.measure(placement, 4), Measurement)


@pytest.mark.system
def test_a_server_that_does_not_fork_is_named_and_replaced(captured: CapturedModel) -> None:
    local_host.warm_up()
    _signal_server(signal.SIGSTOP)
    placement = in_a_row(captured.graph, 0, 1)
    limits = TimeLimits(fork_seconds=1)
    with ClusterSession(captured, 2, time_limits=limits) as session:
        with (
            pytest.warns(UserWarning, match="it is started again"),
            pytest.raises(CannotStart, match="did not do so within"),
        ):
            session.measure(placement, 4)
        (host,) = session.worker_group.hosts.hosts
        assert isinstance(host, local_host.LocalHost)
        host.limits = TimeLimits()
        assert isinstance(session.measure(placement, 4), Measurement)
