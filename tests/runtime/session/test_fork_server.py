"""The server that workers are forked from may be killed or stopped; sessions go on."""

import os
import signal
import threading
from multiprocessing import forkserver, util
from pathlib import Path
from typing import Any

import pytest

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import CannotStart
from drlpp.placement.measurement import Measurement
from drlpp.runtime import ClusterSession, TimeLimits
from drlpp.runtime.hosts import local_host
from drlpp.runtime.ipc.session_folder import keep_socket_folder
from tests.support.training.pipelines import in_a_row


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


@pytest.mark.system
def test_a_server_that_does_not_fork_is_named_and_replaced(captured: CapturedModel) -> None:
    local_host.warm_up()
    server: Any = forkserver._forkserver
    os.kill(server._forkserver_pid, signal.SIGSTOP)
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
