"""How the processes of a session find each other, and how controller and workers talk.

Workers find each other in a key-value store: one address, and a session's own keys.
``torch.distributed`` has no passwords. What keeps others out is the address that the store listens
on, by default this machine alone, and that its keys begin with a random token, which workers get
from the process that forks them and never on a command line. So sessions on one machine cannot meet
by mistake. Other users of the same machine who mean harm can reach the port.
"""

from __future__ import annotations

import pickle
import secrets
import socket
import uuid
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch.distributed as dist

from drlpp.errors import StorageFailure
from drlpp.runtime.ipc.protocol import StoreAddress

_LONGEST_BYTES = 2048


class Channel:
    """One end of a pipe; long messages are files of a folder, which both ends name."""

    def __init__(self, connection: Connection, folder: str) -> None:
        self.connection = connection
        self.folder = folder

    def send(self, message: object) -> None:
        """Send ``message`` without waiting for the other side.

        Raises:
            StorageFailure: a long one cannot be written.
        """
        data = pickle.dumps(message)
        if len(data) > _LONGEST_BYTES:
            path = Path(self.folder) / f"message-{uuid.uuid4().hex}"
            try:
                path.write_bytes(data)
            except OSError as error:
                # Also where somebody has removed the folder.
                path.unlink(missing_ok=True)
                raise StorageFailure(f"{path}: cannot be written ({error.strerror})") from None
            data = pickle.dumps(path)
        self.connection.send_bytes(data)

    def receive(self) -> Any:
        """Wait for the next message.

        Raises:
            EOFError: the other side has gone.
        """
        message = pickle.loads(self.connection.recv_bytes())
        if isinstance(message, Path):
            try:
                data = message.read_bytes()
            finally:
                # Also of what does not fit into memory, which nobody would read again.
                message.unlink(missing_ok=True)
            message = pickle.loads(data)
        return message

    def close(self) -> None:
        """Close this end."""
        self.connection.close()


def open_store(address: str) -> tuple[dist.TCPStore, StoreAddress]:
    """Open a store in this process, on ``address`` and a free port, with a new token.

    Left to itself, ``TCPStore`` listens on all addresses of the machine.
    """
    listening = socket.create_server((address, 0), backlog=1024)
    store = dist.TCPStore(
        address,
        listening.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        # The store closes it.
        master_listen_fd=listening.detach(),
    )
    return store, StoreAddress(address, store.port, secrets.token_hex(16))


def join_store(store: StoreAddress) -> dist.Store:
    """Return the part of another process' store that belongs to its token."""
    return dist.PrefixStore(store.token, dist.TCPStore(store.address, store.port, is_master=False))
