"""The process around a worker: how it begins, how it ends, and what happens to its memory."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import torch

from drlpp.errors import (
    DRLPPError,
    InvalidCluster,
    InvalidInput,
    ModelError,
    OutOfMemory,
    RunFailure,
    StorageFailure,
    WorkerLost,
)
from drlpp.runtime.comm.connections import broken_connection
from drlpp.runtime.device.devices import device_failure, is_out_of_memory
from drlpp.runtime.ipc.channel import Channel, join_store
from drlpp.runtime.ipc.protocol import WorkerSpec
from drlpp.runtime.ipc.session_folder import remove_files_of_dead_controller
from drlpp.runtime.ipc.time_limits import TimeLimits
from drlpp.runtime.worker.worker import Worker


def worker_main(post: WorkerSpec, channel: Channel) -> None:
    """Run a worker process until it is killed, or the controller is gone."""
    if post.own_group:
        os.setpgrp()
    watch = settle(Path(channel.folder))
    # What ps and top show.
    torch._C._set_thread_name(f"drlpp-w{post.worker}")
    torch.set_num_threads(1)
    store = join_store(post.store)
    state = Worker(post, channel, store)
    try:
        while True:
            _carry_out_next(post.worker, state, channel)
    except (EOFError, ConnectionError, FileNotFoundError) as error:
        # The controller is gone, and its files may be as well, if another worker was quicker. The
        # other thread removes what is left, and ends us.
        watch.join(TimeLimits.orphan_seconds)
        print(
            f"worker {post.worker} ends: its controller runs, but something of the session is gone "
            f"({error or 'the connection was closed'})",
            file=sys.stderr,
            flush=True,
        )
        # Gloo's threads may still hold operations of an abandoned trial; ordinary exit would abort.
        os._exit(1)


def _carry_out_next(worker: int, state: Worker, channel: Channel) -> None:
    """Carry out the next command and answer it."""
    try:
        command = channel.receive()
        try:
            answer = state.carry_out(command)
        except Exception as error:
            answer = failed(worker, error)
        channel.send(answer)
    except Exception as error:
        # Commands and answers need memory themselves, and torch for the tensors in them.
        if not (isinstance(error, StorageFailure) or is_out_of_memory(error)):
            raise
        channel.send(failed(worker, error))


def failed(worker: int, error: Exception) -> DRLPPError:
    """Return the error that a worker answers with, for the controller to raise."""
    summary = " ".join(str(error).split())[:500]
    if isinstance(error, RunFailure | InvalidInput):
        # Disks and GPUs depend on the worker, all else that is foreseen does not.
        of_worker = isinstance(error, StorageFailure | InvalidCluster)
        told = type(error)(f"worker {worker}: {summary}" if of_worker else summary)
        # Such as the minibatch whose loss is not finite.
        vars(told).update(vars(error))
        return told
    if broken := broken_connection(error):
        # If another has ended, the controller says that instead.
        return WorkerLost(f"worker {worker} lost its connection to another ({broken[:200]})")
    if is_out_of_memory(error):
        return OutOfMemory(f"worker {worker}: {type(error).__name__}: {summary}")
    if found := device_failure(error):
        return WorkerLost(f"worker {worker} lost its GPU ({found})", [worker])
    return ModelError(f"worker {worker}: {type(error).__name__}: {summary}")


def settle(folder: Path) -> threading.Thread:
    """Do what every process of a session does first; the thread ends it with its controller."""
    # What was imported lives as long as the process: collections need not look at it again.
    gc.freeze()
    # Ctrl-C reaches the whole process group; the controller decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _wake_up_when_orphaned()
    keep_freed_memory()
    watch = threading.Thread(target=_end_with_controller, args=(folder,), daemon=True)
    watch.start()
    return watch


def _end_with_controller(folder: Path) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    remove_files_of_dead_controller(folder)
    os._exit(1)


def _wake_up_when_orphaned() -> None:
    """Have the system continue this process, should it be stopped, when the fork server ends.

    A stopped worker would not see that the controller is gone, and stay for ever. The server ends
    when nobody holds the pipe any more that it watches; workers get a copy to start processes of
    their own, which they never do.
    """
    server: Any = forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
    pr_set_pdeathsig = 1
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").prctl(pr_set_pdeathsig, signal.SIGCONT)


def keep_freed_memory() -> None:
    """Let malloc reuse big blocks instead of giving them back to the system after every use.

    Otherwise every activation is a fresh mapping, and its page faults cost about as much as
    the operators of a small model.
    """
    m_trim_threshold, m_mmap_threshold = -1, -3
    largest_mmap_threshold = 32 * 1024 * 1024
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(m_mmap_threshold, largest_mmap_threshold)
        libc.mallopt(m_trim_threshold, 1024 * 1024 * 1024)
