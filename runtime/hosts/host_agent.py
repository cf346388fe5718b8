"""What runs on every rank of a ``torchrun`` launch but the first: it keeps workers of a session.

A host agent computes nothing itself, so it always listens: it starts workers, passes commands on to
them and their answers back, keeps the host's copies of the session's files, and ends its workers
when the controller is gone. Only its worker dies in a trial that fails, so ``torchrun`` never has
to restart anything. The controller's side of it is :mod:`drlpp.runtime.hosts.remote_host`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing import connection as mp_connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from drlpp.errors import RunFailure, StorageFailure
from drlpp.io.disk_errors import is_storage_error
from drlpp.runtime.hosts.host import Answered, Ended, Event, Interrupted
from drlpp.runtime.hosts.host_protocol import (
    Clock,
    Close,
    Dispatch,
    Fetch,
    Handshake,
    Kill,
    Open,
    Publish,
    Remove,
    Reply,
    Request,
    Shutdown,
    Start,
    chunks_of,
    place_of,
    receive_message,
    send_message,
    write_file,
)
from drlpp.runtime.hosts.local_host import LocalHost
from drlpp.runtime.ipc.commands import Failed
from drlpp.runtime.ipc.handshake import SignedConnection
from drlpp.runtime.ipc.session_folder import SessionFolder
from drlpp.runtime.ipc.time_limits import TimeLimits


class HostAgent:
    """Keeps the workers of one rank.

    Args:
        hello: who it is.
        connection: to the controller, which has proven that it knows the token, and vice versa.
        interrupts: readable once Ctrl-C has been pressed here.
    """

    def __init__(
        self, hello: Handshake, connection: SignedConnection, interrupts: Connection | None = None
    ) -> None:
        self._hello = hello
        self._connection = connection
        self._interrupts = interrupts
        self._host: LocalHost | None = None
        self._own_folder: SessionFolder | None = None

    def serve(self) -> int:
        """Serve the controller until it says that this process has to end.

        Returns:
            The exit code that it wants.

        Raises:
            OSError, EOFError: if the connection breaks instead.
        """
        try:
            send_message(self._connection, self._hello)
            while True:
                waitables: list[Any] = [self._connection]
                if self._host:
                    waitables += self._host.waitables()
                if self._interrupts is not None:
                    waitables.append(self._interrupts)
                ready: list[Any] = mp_connection.wait(waitables)
                if self._interrupts in ready:
                    # torchrun passes on what the terminal has sent already.
                    self._interrupts = None
                    send_message(self._connection, Interrupted(self._hello.host_name))
                self._report(self._host.events(ready) if self._host else [])
                if self._connection not in ready:
                    continue
                number, request = receive_message(self._connection)
                if isinstance(request, Shutdown):
                    return request.exit_code
                self._carry_out(number, request)
        finally:
            try:
                self._end_session()
            except RunFailure as error:
                print(f"rank {self._hello.rank}: {error}", file=sys.stderr)

    def _report(self, events: Sequence[Event]) -> None:
        for event in events:
            send_message(self._connection, event)
        if self._host and any(isinstance(event, Ended) for event in events):
            # All workers are replaced after that; a dead one would be reported again and again.
            # If one does not die, the reply says so when the controller asks for its end.
            with suppress(RunFailure):
                self._host.kill()

    def _carry_out(self, number: int, request: Request) -> None:
        if isinstance(request, Dispatch):
            # A worker that has ended takes no command; that it has is on its way.
            if self._host and self._host.process_ids:
                self._pass_on(self._host, request)
            return
        try:
            reply = self._answer(number, request)
        except (OSError, RunFailure) as error:
            storage = isinstance(error, StorageFailure) or is_storage_error(error)
            reply = Reply(number, problem=str(error), storage=storage)
        send_message(self._connection, reply)

    def _pass_on(self, host: LocalHost, request: Dispatch) -> None:
        try:
            host.send(request.worker, request.command)
        except StorageFailure as error:
            failed = Failed("StorageFailure", f"host {self._hello.host_name}: {error}")
            send_message(self._connection, Answered(request.worker, failed))

    def _answer(self, number: int, request: Request) -> Reply:
        match request:
            case Open(folder, limits):
                return Reply(number, folder=self._begin_session(folder, limits))
            case Start(posts):
                host = self._opened
                host.start(posts)
                return Reply(number, process_ids=tuple(host.process_ids))
            case Publish(file, bytes_):
                place = place_of(self._folder, file)
                send_message(self._connection, Reply(number))
                write_file(place, self._chunks(bytes_))
            case Fetch(file):
                self._send_file(number, place_of(self._folder, file))
            case Remove(file):
                place_of(self._folder, file).unlink(missing_ok=True)
            case Clock():
                return Reply(number, seconds=time.perf_counter())
            case Kill():
                if self._host:
                    self._host.kill()
            case Close():
                self._end_session()
        return Reply(number)

    @property
    def _opened(self) -> LocalHost:
        if self._host is None:
            raise RunFailure("no session has been opened here")
        return self._host

    @property
    def _folder(self) -> Path:
        return self._opened.folder

    def _begin_session(self, folder: str | None, limits: TimeLimits) -> str:
        self._end_session()
        if folder is None:
            self._own_folder = SessionFolder()
            folder = self._own_folder.name
        self._host = LocalHost([self._hello.rank], Path(folder), limits=limits)
        return folder

    def _chunks(self, bytes_: int) -> Iterator[bytes]:
        while bytes_ > 0:
            chunk = self._connection.recv_bytes()
            bytes_ -= len(chunk)
            yield chunk

    def _send_file(self, number: int, path: Path) -> None:
        send_message(self._connection, Reply(number, bytes_=path.stat().st_size))
        for chunk in chunks_of(path):
            self._connection.send_bytes(chunk)

    def _end_session(self) -> None:
        host, self._host = self._host, None
        folder, self._own_folder = self._own_folder, None
        try:
            if host:
                host.close()
        finally:
            if folder:
                folder.cleanup()
