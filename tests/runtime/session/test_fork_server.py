"""The server that workers are forked from may be killed or stopped; sessions go on."""

import os
import signal
import subprocess
import sys
import threading
from multiprocessing import forkserver, util
from pathlib import Path
from typing import Any

import pytest

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import CannotStart, InvalidInput
from drlpp.placement.measurement import Measurement
from drlpp.runtime import ClusterSession, TimeLimits
from drlpp.runtime.hosts.fork_server import kill_server, warm_up
from drlpp.runtime.ipc.session_folder import keep_socket_folder
from tests.support.training.pipelines import in_a_row

_PROGRAM = """
import re, signal
from multiprocessing import forkserver
from pathlib import Path
from drlpp.runtime.hosts.fork_server import warm_up

before = signal.getsignal(signal.SIGINT)
warm_up()
server = forkserver._forkserver._forkserver_pid
status = Path(f"/proc/{server}/status").read_text()
ignored = int(re.search(r"SigIgn:\\s*(\\w+)", status)[1], 16)
print(bool(ignored & 1 << signal.SIGINT - 1), signal.getsignal(signal.SIGINT) is before)
"""


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
def test_a_server_that_does_not_fork_is_named_and_replaced(
    captured: CapturedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm_up()
    server: Any = forkserver._forkserver
    os.kill(server._forkserver_pid, signal.SIGSTOP)
    placement = in_a_row(captured.graph, 0, 1)
    with ClusterSession(captured, 2) as session:
        monkeypatch.setattr(TimeLimits, "fork_seconds", 1)
        with (
            pytest.warns(UserWarning, match="it is started again"),
            pytest.raises(CannotStart, match="did not do so within"),
        ):
            session.measure(placement, 4)
        monkeypatch.undo()
        assert isinstance(session.measure(placement, 4), Measurement)


def test_a_killed_server_is_known_to_have_ended() -> None:
    """Else the next worker is asked of a server that is just going."""
    warm_up()
    server: Any = forkserver._forkserver
    before = server._forkserver_pid
    kill_server()
    warm_up()
    assert server._forkserver_pid != before


@pytest.mark.system
def test_the_server_ignores_ctrl_c_from_its_beginning() -> None:
    """Also while it imports, which takes longer than reading this here."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_a_folder_with_too_long_a_name_for_sockets_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forkserver, "ensure_running", forkserver.ForkServer().ensure_running)
    monkeypatch.setattr(util, "get_temp_dir", lambda: str(tmp_path / ("long" * 30)))
    with pytest.raises(InvalidInput, match="set TMPDIR to a shorter one"):
        warm_up()
