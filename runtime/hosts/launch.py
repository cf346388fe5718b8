"""The start by ``torchrun``: the first process is the controller, every process keeps one worker.

``torchrun`` brings the processes together (c10d's rendezvous) and tells each who it is. They then
connect to the controller, and both sides prove that they know the token in ``DRLPP_TOKEN``
(:mod:`drlpp.runtime.ipc.handshake`).
"""

from __future__ import annotations

import atexit
import queue
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from multiprocessing import AuthenticationError, Pipe
from multiprocessing.connection import Connection
from types import FrameType

import torch.distributed as dist

from drlpp.errors import HostLost, InvalidInput
from drlpp.runtime.hosts.host_agent import HostAgent
from drlpp.runtime.hosts.host_protocol import (
    Handshake,
    Shutdown,
    limit_reading,
    receive_message,
    send_message,
    watch_peer,
)
from drlpp.runtime.hosts.launch_store import (
    address_of,
    count_attempt,
    exit_code_of_controller,
    reach_controller,
    rendezvous,
    tell_end,
    tell_port,
)
from drlpp.runtime.hosts.launched_process import TOKEN_VARIABLE, Launch, versions
from drlpp.runtime.hosts.local_host import warm_up
from drlpp.runtime.ipc.handshake import SignedConnection, greet_controller, welcome_host_agent
from drlpp.runtime.ipc.time_limits import DEFAULT_TIME_LIMITS, TimeLimits
from drlpp.schedule.method import checked_timeout

_RETRY_SECONDS = 0.2
_MOST_HANDSHAKES = 64
"""Handshakes at a time; a flood of strangers must not take all files that this process may open."""
_LONGEST_VERSIONS_BYTES = 1000


class Controller:
    """The first process of a launch, which all others connect to.

    It listens on the address that ``torchrun`` has given the others, and nowhere else.

    Args:
        launch: what ``torchrun`` tells this process.
        store: where it tells the others its port.

    Attributes:
        port: that it listens on.
        in_session: whether a session has the host agents; there is one at a time.
        attempt: counted from 1; ``torchrun`` keeps its store when it starts a program anew, but
            counts that on each host by itself.

    Raises:
        InvalidInput: the others cannot reach this host at the address that they know.
    """

    def __init__(self, launch: Launch, store: dist.Store) -> None:
        self.launch = launch
        self.in_session = False
        address = address_of(launch.controller)
        self._listener = socket.create_server((address, 0), backlog=launch.size + _MOST_HANDSHAKES)
        self.port: int = self._listener.getsockname()[1]
        self.hello = launch.hello(address)
        self._arrived: queue.Queue[tuple[Handshake, SignedConnection] | InvalidInput] = (
            queue.Queue()
        )
        self._host_agents: dict[int, tuple[Handshake, SignedConnection]] = {}
        self._turned_away: set[str] = set()
        self._exit_code: int | None = None
        self._handshakes = threading.BoundedSemaphore(_MOST_HANDSHAKES)
        # The store is kept: it may be this process that serves it.
        self._store = store
        self.attempt = count_attempt(store)
        threading.Thread(target=self._listen, daemon=True).start()
        tell_port(store, self.port)

    def host_agents(self) -> list[tuple[Handshake, SignedConnection]]:
        """Return the other processes, by rank, once all of them have come.

        Raises:
            HostLost: some did not come in time.
            InvalidInput: one has other versions than this process.
        """
        limit = self.launch.limits.gathering_seconds
        end = time.monotonic() + limit
        while missing := sorted(set(range(1, self.launch.size)) - self._host_agents.keys()):
            try:
                arrival = self._arrived.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise HostLost(
                    f"ranks {missing} of {self.launch.size} have not reached the controller at "
                    f"{self.hello.address} within {limit:.0f} s{self._suspicion()}"
                ) from None
            self._take_in(arrival)
        return [self._host_agents[rank] for rank in sorted(self._host_agents)]

    def _take_in(self, arrival: tuple[Handshake, SignedConnection] | InvalidInput) -> None:
        if isinstance(arrival, InvalidInput):
            raise arrival
        hello, connection = arrival
        if hello.rank in self._host_agents:
            connection.close()
        else:
            self._host_agents[hello.rank] = arrival

    def _listen(self) -> None:
        """Welcome every process that connects, from the start: strangers must not fill a queue."""
        with self._listener:
            while True:
                self._handshakes.acquire()
                try:
                    peer, (address, _) = self._listener.accept()
                except OSError:
                    self._handshakes.release()
                    if self._exit_code is not None:
                        return
                    time.sleep(_RETRY_SECONDS)  # The system may be short of open files.
                    continue
                # One that says little, or slowly, must not keep the others waiting.
                threading.Thread(target=self._welcome, args=(peer, address), daemon=True).start()

    def _welcome(self, peer: socket.socket, address: str) -> None:
        """Check that a process knows the token; turn it away if not, whatever it sends."""
        connection: SignedConnection | None = None
        try:
            limits = self.launch.limits
            watch_peer(peer, limits.host_silence_seconds)
            # Of whoever knows the token, beyond the handshake.
            limit_reading(peer, limits.host_silence_seconds)
            here = self.hello.address, self.port
            rank, connection = welcome_host_agent(
                peer, here, self.launch.token, limits.handshake_seconds
            )
            self._arrived.put(self._introduced(rank, address, connection))
            connection = None
            if self._exit_code is not None:
                self._let_go()
        except AuthenticationError:
            self._turned_away.add(address)
        except (EOFError, OSError):
            pass  # A stranger, or a connection that broke: the other end tells its user.
        finally:
            self._handshakes.release()
            peer.close()
            if connection is not None:
                connection.close()

    def _introduced(
        self, rank: int, address: str, connection: SignedConnection
    ) -> tuple[Handshake, SignedConnection] | InvalidInput:
        # Before anything is unpickled that another version may have pickled otherwise.
        theirs = connection.recv_bytes(_LONGEST_VERSIONS_BYTES).decode(errors="replace")
        if theirs != versions():
            connection.close()
            return InvalidInput(
                f"the host at {address} has {theirs}, and this one {versions()}; install the "
                "same versions on all hosts"
            )
        hello: Handshake = receive_message(connection)
        if hello.rank != rank or not 0 < rank < self.launch.size:
            raise ConnectionAbortedError("it is not who it has proven to be")
        return hello, connection

    def _suspicion(self) -> str:
        """Return a possible reason why processes are missing, for an error message."""
        if not self._turned_away:
            return ""
        return (
            f"; a process from {', '.join(sorted(self._turned_away))} was turned away, since it "
            f"has another {TOKEN_VARIABLE}"
        )

    def close(self, exit_code: int = 0) -> None:
        """Let the other processes go, with the exit code of this one."""
        # Those that have not come yet learn it there.
        tell_end(self._store, exit_code)
        self._exit_code = exit_code
        self._let_go()
        # It ends the waiting of the thread that closes it.
        self._listener.shutdown(socket.SHUT_RDWR)

    def _let_go(self) -> None:
        while not self._arrived.empty():
            with suppress(InvalidInput, queue.Empty):
                self._take_in(self._arrived.get_nowait())
        host_agents, self._host_agents = self._host_agents, {}
        for _, connection in host_agents.values():
            with suppress(OSError):
                send_message(connection, (0, Shutdown(self._exit_code or 0)))
            connection.close()


_controller: Controller | None = None


def init_multihost(time_limits: TimeLimits = DEFAULT_TIME_LIMITS) -> None:
    """Join the processes of a launch: the first call of a program that ``torchrun`` may start.

    Without ``torchrun`` it does nothing. On the first process, sessions from now on have all
    processes of the launch as workers. All others serve these sessions, and exit when the first
    one does.

    Args:
        time_limits: how long to wait for the other processes, and of sessions that are given none.

    Raises:
        InvalidInput: the environment has no token.
    """
    global _controller
    launch = Launch.from_environment(time_limits)
    if launch is None or _controller is not None:
        return
    if launch.rank == 0:
        # torchrun ends processes by SIGTERM; what was learned so far is kept, as after Ctrl-C.
        signal.signal(signal.SIGTERM, _interrupt)
        _controller = Controller(launch, rendezvous(time_limits))
        atexit.register(shutdown_multihost)
        warm_up()
    else:
        signal.signal(signal.SIGTERM, _exit)
        sys.exit(serve_host(launch, rendezvous(time_limits), _interrupts(launch)))


def shutdown_multihost(exit_code: int | None = None) -> None:
    """Let the other processes of the launch go: the last call of a program.

    At its end it happens by itself, but Python does not reveal what ``sys.exit`` was called with: a
    program that ends by another exit code than 0 calls this before.

    Args:
        exit_code: that they end with, so that ``torchrun`` sees a failure on every host; by default
            1 if an exception other than ``SystemExit`` ends the program, else 0.
    """
    global _controller
    if _controller is not None:
        if exit_code is None:
            exit_code = int(getattr(sys, "last_value", None) is not None)
        _controller.close(exit_code)
        _controller = None


def controller() -> Controller | None:
    """Return the controller if this process is the first of a launch, else None."""
    return _controller


def check_joined() -> None:
    """Check that the workers of this process's sessions are where they should be.

    Raises:
        InvalidInput: in a process of ``torchrun`` that has not called :func:`init_multihost`: each
            would have a session of its own, with all of its workers on its own host.
    """
    if _controller is None and Launch.from_environment() is not None:
        raise InvalidInput(
            "this program was started by torchrun; call drlpp.runtime.init_multihost() before "
            "anything else, in every process"
        )


def default_num_workers(on_this_machine: int = 4) -> int:
    """Return a session's usual number of workers: all of the launch, or ``on_this_machine``.

    Raises:
        InvalidInput: see :func:`check_joined`.
    """
    check_joined()
    return on_this_machine if _controller is None else _controller.launch.size


def time_limits_of(
    given: TimeLimits | None = None, timeout_seconds: float | None = None
) -> TimeLimits:
    """Return the limits of a session: those given to it, those of the launch, or the defaults.

    Args:
        given: to the session.
        timeout_seconds: the limit for an answer, instead of that in the others.
    """
    usual = DEFAULT_TIME_LIMITS if _controller is None else _controller.launch.limits
    limits = usual if given is None else given
    seconds = checked_timeout(timeout_seconds)
    return limits if seconds is None else replace(limits, answer_seconds=seconds)


def restarted() -> bool:
    """Return whether ``torchrun`` has started this program anew after a failure."""
    return _controller is not None and _controller.attempt > 1


def serve_host(launch: Launch, store: dist.Store, interrupts: Connection | None = None) -> int:
    """Serve the controller until it ends.

    Args:
        launch: what ``torchrun`` tells this process.
        store: where the controller tells its port.
        interrupts: readable once Ctrl-C has been pressed here, which the controller then hears of.

    Returns:
        The exit code.
    """
    warm_up()
    try:
        peer = reach_controller(store, launch.controller, launch.limits)
        peer.settimeout(None)
        watch_peer(peer, launch.limits.host_silence_seconds)
        hello = launch.hello(peer.getsockname()[0])
        there = peer.getpeername()[:2]
        connection = greet_controller(peer, there, launch.token, launch.rank)
        connection.send_bytes(versions().encode())
        return HostAgent(hello, connection, interrupts).serve()
    except AuthenticationError:
        reason = (
            f"has another {TOKEN_VARIABLE}, which has to be the same on every host, or is a "
            "stranger that torchrun's store names in its place"
        )
    except (EOFError, OSError) as error:
        if (exit_code := exit_code_of_controller(store, launch.limits)) is not None:
            return exit_code
        reason = f"cannot be reached: {str(error) or 'it ended'}"
    # At once, with its end: many processes have one terminal.
    sys.stderr.write(f"rank {launch.rank}: the controller at {launch.controller} {reason}\n")
    return 1


def _interrupts(launch: Launch) -> Connection | None:
    """Return what is readable once Ctrl-C has been pressed, unless the controller gets it as well.

    The host agent continues until the controller has ended its session.
    """
    if launch.node == 0:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return None
    interrupts, pressed = Pipe(duplex=False)
    signal.signal(signal.SIGINT, lambda *_: pressed.send_bytes(b"Ctrl-C"))
    return interrupts


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _exit(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)
