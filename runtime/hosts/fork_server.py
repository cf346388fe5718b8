"""The server that worker processes are forked from, with torch loaded already.

This file imports nothing of torch itself, so that the server loads it while its user does.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection as mp_connection
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from typing import Any

from drlpp.errors import InvalidInput
from drlpp.runtime.ipc.session_folder import keep_socket_folder
from drlpp.runtime.ipc.time_limits import TimeLimits

SERVER_HAS_ENDED = (
    "the server that workers are forked from has ended, which the system may have killed for want "
    "of memory"
)


def warm_up() -> None:
    """Start the server that workers are forked from; it loads torch while other work continues.

    Raises:
        InvalidInput: the folder for temporary files has too long a name for the server's socket.
    """
    forking_context()
    # Made before the first worker, so that all know its name and can remove it.
    keep_socket_folder()
    try:
        with _interrupts_ignored():
            forkserver.ensure_running()
    except OSError as error:
        if "AF_UNIX path too long" not in str(error):
            raise
        raise InvalidInput(
            f"temporary files go to {tempfile.gettempdir()}, a name too long for sockets; set "
            "TMPDIR to a shorter one, such as /tmp"
        ) from None


def kill_server() -> None:
    """Kill the server, unless it is gone; :func:`warm_up` starts another one.

    A process that ends closes its sockets before its parent can know. So its end is waited for,
    lest it be taken for a server that runs.
    """
    server: Any = forkserver._forkserver
    if server._forkserver_pid is None:
        return
    with suppress(ProcessLookupError):
        os.kill(server._forkserver_pid, signal.SIGKILL)
        end = os.pidfd_open(server._forkserver_pid)
        mp_connection.wait([end], TimeLimits.end_seconds)
        os.close(end)


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Have a process that starts here ignore Ctrl-C, which reaches the whole process group.

    Otherwise the server, which ignores it only when all is imported, prints where it was.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def forking_context() -> ForkServerContext:
    """Return what makes processes that the server forks, with torch loaded."""
    context = multiprocessing.get_context("forkserver")
    # torch.optim imports torch._dynamo when the first optimizer is built, which takes a second.
    context.set_forkserver_preload(["drlpp.runtime.worker.worker_process", "torch._dynamo"])
    return context


def describe_exit(code: int | None) -> str:
    """Say how a process has ended."""
    # What multiprocessing says if the server that would have reported the exit code has ended.
    if code == 255:
        return f"is given up: {SERVER_HAS_ENDED}"
    if code == -signal.SIGKILL:
        return "was killed by SIGKILL, as the system does for want of memory"
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


@contextmanager
def main_module_left_out() -> Iterator[None]:
    """Keep multiprocessing from running the user's main script again in every worker.

    Workers need nothing of it, and it may lack the ``if __name__ == "__main__"`` that would
    otherwise be required.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
