"""How the processes of a ``torchrun`` launch find each other: by the store that it has for them.

The controller writes there on which port it listens, and in the end that it has ended, and how.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

from drlpp.errors import InvalidInput
from drlpp.runtime.ipc.time_limits import TimeLimits

_RETRY_SECONDS = 0.2

_PORTS = range(1, 2**16)
_LONGEST_PLACE_BYTES = 20

_PLACE_KEY, _ATTEMPTS_KEY = "drlpp/controller", "drlpp/attempts"
_ENDED = "ended "


def rendezvous(limits: TimeLimits) -> dist.Store:
    """Return the store of ``torchrun``, or where it has none, one of the first process.

    The store of ``env:
    `` will not do: it has a part for each attempt, and hosts count differently.
    """
    store: dist.Store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        and os.environ["RANK"] == "0",
        wait_for_workers=False,
    )
    store.set_timeout(timedelta(seconds=limits.launch_seconds))
    return store


def count_attempt(store: dist.Store) -> int:
    """Return how often ``torchrun`` has started the program, this time included."""
    attempt: int = store.add(_ATTEMPTS_KEY, 1)
    return attempt


def tell_port(store: dist.Store, port: int) -> None:
    """Say on which port the controller listens."""
    store.set(_PLACE_KEY, str(port))


def tell_end(store: dist.Store, exit_code: int) -> None:
    """Say that the controller ends, and how; the store may have gone already."""
    with suppress(Exception):
        store.set(_PLACE_KEY, f"{_ENDED}{exit_code}")


def address_of(controller: str) -> str:
    """Return the address of this host, which the others call ``controller``, as they reach it.

    Raises:
        InvalidInput: they know it by a name that means the host itself to each of them.
    """
    try:
        address = socket.gethostbyname(controller)
    except OSError as error:
        raise InvalidInput(
            f"torchrun's address of this host, {controller}, is not known here ({error}); "
            "give torchrun one that all hosts know by --local-addr"
        ) from None
    elsewhere = int(os.environ.get("GROUP_WORLD_SIZE", "1")) > 1
    if elsewhere and address.startswith("127.") and address != controller:
        raise InvalidInput(
            f"this host takes its own name, {controller}, for {address}, which other hosts "
            "cannot reach; give torchrun the host's address in the network by --local-addr"
        )
    return address


def reach_controller(store: dist.Store, controller: str, limits: TimeLimits) -> socket.socket:
    """Connect to the host ``controller``, as soon as it listens.

    Raises:
        OSError: it cannot be reached, or has ended.
    """
    begin = time.monotonic()
    while True:
        place = _place(store)
        waited = time.monotonic() - begin
        try:
            if place.startswith(_ENDED):
                raise ConnectionRefusedError("it has ended")
            if not place.isdecimal() or int(place) not in _PORTS:
                raise OSError(f"torchrun's store, which anyone can write to, has port {place!r}")
            return socket.create_connection((controller, int(place)), limits.gathering_seconds)
        except ConnectionRefusedError:
            # It may be that of an attempt before, which is being replaced.
            ended = place.startswith(_ENDED)
            if waited > (limits.restart_seconds if ended else limits.gathering_seconds):
                raise
            time.sleep(_RETRY_SECONDS)


def _place(store: dist.Store) -> str:
    """Return what is stored under a key, by the controller or anybody else."""
    place: bytes = store.get(_PLACE_KEY)[:_LONGEST_PLACE_BYTES]
    return place.decode("ascii", errors="replace")


def exit_code_of_controller(store: dist.Store, limits: TimeLimits) -> int | None:
    """Return the controller's exit code.

    None if it has not ended by itself, or if the store is out of reach as well.
    """
    found: queue.Queue[str] = queue.Queue()

    def ask() -> None:
        with suppress(Exception):
            found.put(_place(store))

    # Whatever its timeout, a store whose host is cut off is waited for for ever.
    threading.Thread(target=ask, daemon=True).start()
    # Of an exit code that is none, nothing is known.
    with suppress(queue.Empty, ValueError):
        place = found.get(timeout=limits.exit_code_seconds)
        if place.startswith(_ENDED):
            return int(place.removeprefix(_ENDED))
    return None
