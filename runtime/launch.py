"""Started by ``torchrun``: the first process is the controller, every process keeps one worker.

``torchrun`` brings the processes together (c10d's rendezvous) and tells each who it is. They then
connect to the controller, and both sides prove that they know the token in ``DRLPP_TOKEN``.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from types import FrameType

import torch.distributed as dist

from drlpp.errors import HostLost, InvalidInput
from drlpp.runtime.emulation import available_cores
from drlpp.runtime.hosts import WorkerHost
from drlpp.runtime.keeper import Hello, Keeper, Leave, limit_reading, watch_peer
from drlpp.runtime.local_host import LocalHost, warm_up
from drlpp.runtime.remote_host import RemoteHost

TOKEN_VARIABLE = "DRLPP_TOKEN"

_GATHERING_SECONDS = 120
_HANDSHAKE_SECONDS = 5
_PORT_KEY = "drlpp/controller"


@dataclass(frozen=True)
class Launch:
    """What ``torchrun`` tells a process.

    Attributes:
        rank: of the process among all; 0 is the controller.
        size: number of processes.
        node: number of its host.
        controller: address of the host of rank 0.
        token: the secret of the session.
    """

    rank: int
    size: int
    node: int
    controller: str
    token: bytes

    @classmethod
    def from_environment(cls) -> Launch | None:
        """None if this process was not started by ``torchrun``.

        Raises:
            InvalidInput: there is no token.
        """
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            return None
        token = os.environ.get(TOKEN_VARIABLE, "")
        if len(token) < 16:
            raise InvalidInput(
                f"{TOKEN_VARIABLE} is {'too short' if token else 'not set'}: processes of torchrun "
                "accept only each other, by a secret in the environment that is the same on every "
                f"host, such as what `openssl rand -hex 16` prints"
            )
        return cls(
            rank=int(os.environ["RANK"]),
            size=int(os.environ["WORLD_SIZE"]),
            node=int(os.environ["GROUP_RANK"]),
            controller=os.environ["MASTER_ADDR"],
            token=token.encode(),
        )

    def hello(self, address: str) -> Hello:
        """Who this process is."""
        return Hello(
            rank=self.rank,
            node=self.node,
            host_name=socket.gethostname(),
            address=address,
            machine=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            cores=tuple(available_cores()),
        )


class Controller:
    """The first process of a launch, which all others connect to.

    It listens on the address that ``torchrun`` has told the others, and nowhere else.

    Args:
        launch: what ``torchrun`` tells this process.
        store: where it tells the others its port.
    """

    def __init__(self, launch: Launch, store: dist.Store) -> None:
        self.launch = launch
        self._listener = socket.create_server(
            (socket.gethostbyname(launch.controller), 0), backlog=launch.size
        )
        self.hello = launch.hello(self._listener.getsockname()[0])
        self._keepers: list[tuple[Hello, Connection]] = []
        # The store is kept: it may be this process that serves it.
        self._store = store
        store.set(_PORT_KEY, str(self.port))

    @property
    def port(self) -> int:
        """That it listens on."""
        port: int = self._listener.getsockname()[1]
        return port

    def keepers(self) -> list[tuple[Hello, Connection]]:
        """The other processes, by rank, once all of them have come.

        Raises:
            HostLost: some did not come in time.
        """
        end = time.monotonic() + _GATHERING_SECONDS
        while len(self._keepers) < self.launch.size - 1:
            self._listener.settimeout(max(0.01, end - time.monotonic()))
            try:
                self._welcome(self._listener.accept()[0])
            except TimeoutError:
                known = {hello.rank for hello, _ in self._keepers}
                missing = [rank for rank in range(1, self.launch.size) if rank not in known]
                raise HostLost(
                    f"ranks {missing} of {self.launch.size} have not reached the controller at "
                    f"{self.hello.address} within {_GATHERING_SECONDS} s"
                ) from None
        return sorted(self._keepers, key=lambda keeper: keeper[0].rank)

    def _welcome(self, peer: socket.socket) -> None:
        """Whoever does not know the token is turned away, whatever it sends."""
        watch_peer(peer)
        peer.setblocking(True)
        limit_reading(peer, _HANDSHAKE_SECONDS)
        connection = Connection(os.dup(peer.fileno()))
        try:
            deliver_challenge(connection, self.launch.token)
            answer_challenge(connection, self.launch.token)
            hello = connection.recv()
        except (AuthenticationError, AssertionError, EOFError, OSError):
            connection.close()
        else:
            limit_reading(peer, 0)
            self._keepers.append((hello, connection))
        peer.close()

    def close(self) -> None:
        """Let the other processes go."""
        for _, connection in self._keepers:
            with suppress(OSError):
                connection.send(Leave())
            connection.close()
        self._keepers = []
        self._listener.close()


_controller: Controller | None = None


def join_launch() -> None:
    """What a program does first that may be started by ``torchrun``.

    Without ``torchrun`` nothing. On the first process, sessions from now on have all processes of
    the launch as workers. All others serve these sessions, and exit when the first one does.

    Raises:
        InvalidInput: the environment has no token.
    """
    global _controller
    launch = Launch.from_environment()
    if launch is None or _controller is not None:
        return
    if launch.rank == 0:
        # torchrun ends processes by SIGTERM; what was learned so far is kept, as after Ctrl-C.
        signal.signal(signal.SIGTERM, _interrupt)
        _controller = Controller(launch, _rendezvous())
        atexit.register(_controller.close)
        warm_up()
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, _exit)
        sys.exit(keep_workers(launch, _rendezvous()))


def usual_workers(on_this_machine: int = 4) -> int:
    """How many workers a session has if nobody says: all that ``torchrun`` has started, if it has.

    Raises:
        InvalidInput: in a process of ``torchrun`` that has not called :func:`join_launch`.
    """
    if _controller is not None:
        return _controller.launch.size
    if Launch.from_environment() is not None:
        raise InvalidInput(
            "this program was started by torchrun; call drlpp.runtime.join_launch() before "
            "anything else, in every process"
        )
    return on_this_machine


def restarted() -> bool:
    """Whether ``torchrun`` has started this program anew after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


@dataclass(frozen=True)
class Hosts:
    """The hosts of a session, that of the controller first.

    ``machines`` gives for every worker which machine it runs on, and the cores that may be used
    there: emulated hosts may share one.
    """

    hosts: tuple[WorkerHost, ...]
    machines: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def host_names(self) -> tuple[str, ...]:
        """The name of every worker's host."""
        names = {worker: host.name for host in self.hosts for worker in host.workers}
        return tuple(names[worker] for worker in sorted(names))


def hosts_for(workers: int, folder: Path) -> Hosts:
    """Where the workers of a session run: on this machine, or as ``torchrun`` has spread them.

    Args:
        workers: how many.
        folder: of the session.

    Raises:
        InvalidInput: ``torchrun`` has started fewer processes.
        HostLost: a host does not answer.
    """
    here = tuple(available_cores())
    if _controller is None:
        machines = (("localhost", here),) * workers
        return Hosts((LocalHost(range(workers), folder),), machines)
    if workers > _controller.launch.size:
        raise InvalidInput(
            f"{workers} workers were asked for, but torchrun has started "
            f"{_controller.launch.size} processes, each of which is one; see --nproc-per-node"
        )
    keepers = _controller.keepers()[: workers - 1]
    hellos = [_controller.hello, *(hello for hello, _ in keepers)]
    names = _names_of(hellos)
    hosts: list[WorkerHost] = [LocalHost([0], folder, names[0], _controller.hello.address)]
    folders = {_controller.hello.node: str(folder)}
    for (hello, connection), name in zip(keepers, names[1:], strict=True):
        shares_clock = hello.machine == _controller.hello.machine
        host = RemoteHost(hello, connection, name, folder, shares_clock=shares_clock)
        folders[hello.node] = host.open(folders.get(hello.node))
        hosts.append(host)
    return Hosts(tuple(hosts), tuple((hello.machine, hello.cores) for hello in hellos))


def _names_of(hellos: Sequence[Hello]) -> list[str]:
    """Names of hosts; where several call themselves the same, with their numbers."""
    nodes: dict[str, set[int]] = {}
    for hello in hellos:
        nodes.setdefault(hello.host_name, set()).add(hello.node)
    return [
        hello.host_name if len(nodes[hello.host_name]) == 1 else f"{hello.host_name}-{hello.node}"
        for hello in hellos
    ]


def keep_workers(launch: Launch, store: dist.Store) -> int:
    """Serve the controller until it ends.

    Args:
        launch: what ``torchrun`` tells this process.
        store: where the controller tells its port.

    Returns:
        The exit code.
    """
    warm_up()
    port = int(store.get(_PORT_KEY))
    try:
        peer = socket.create_connection((launch.controller, port), timeout=_GATHERING_SECONDS)
    except OSError:
        # It has ended without any session; torchrun knows whether that was an error.
        return 0
    peer.settimeout(None)
    watch_peer(peer)
    hello = launch.hello(peer.getsockname()[0])
    connection = Connection(peer.detach())
    try:
        answer_challenge(connection, launch.token)
        deliver_challenge(connection, launch.token)
    except AuthenticationError:
        print(
            f"rank {launch.rank}: the controller at {launch.controller} has another "
            f"{TOKEN_VARIABLE}; it has to be the same on every host",
            file=sys.stderr,
        )
        return 2
    except (EOFError, OSError):
        return 0
    try:
        Keeper(hello, connection).serve()
    except (EOFError, OSError) as error:
        reason = str(error) or "it ended"
        print(f"rank {launch.rank}: lost the controller: {reason}", file=sys.stderr)
        return 1
    return 0


def _rendezvous() -> dist.Store:
    store: dist.Store
    store, _, _ = next(dist.rendezvous("env://"))
    store.set_timeout(timedelta(days=1))
    return store


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _exit(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)
