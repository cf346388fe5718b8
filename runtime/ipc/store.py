"""The key-value store in which workers find each other: one address, and a session's own keys.

``torch.distributed`` has no passwords. What keeps others out is the address that the store listens
on, by default this machine alone, and that its keys begin with a random token, which workers get
from the process that forks them and never on a command line. So sessions on one machine cannot meet
by mistake. Other users of the same machine who mean harm can reach the port.
"""

from __future__ import annotations

import secrets
import socket

import torch.distributed as dist

from drlpp.runtime.ipc.protocol import StoreAddress


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
