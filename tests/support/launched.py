"""A launch without ``torchrun``: keepers in threads of this process, with real workers."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch.distributed as dist

from drlpp.runtime.hosts import launch
from drlpp.runtime.hosts.launch import Controller, Launch, keep_workers

TOKEN = b"a secret of at least sixteen bytes"


@contextmanager
def launched(
    nodes: list[int],
    keeper_token: bytes = TOKEN,
    before_keepers: Callable[[Controller], None] = lambda _: None,
) -> Iterator[Controller]:
    """Sessions of this process have one worker for each entry, on the node of that number."""
    store = dist.HashStore()
    first = Launch(rank=0, size=len(nodes), node=nodes[0], controller="127.0.0.1", token=TOKEN)
    controller = Controller(first, store)
    before_keepers(controller)
    keepers = [
        threading.Thread(
            target=keep_workers,
            args=(replace(first, rank=rank, node=node, token=keeper_token), store),
        )
        for rank, node in enumerate(nodes)
        if rank
    ]
    for keeper in keepers:
        keeper.start()
    launch._controller = controller
    try:
        yield controller
    finally:
        launch._controller = None
        controller.close()
        for keeper in keepers:
            keeper.join(30)
            assert not keeper.is_alive()


def connect(controller: Controller) -> socket.socket:
    """A stranger's connection to the controller."""
    address = controller.hello.address
    return socket.create_connection((address, controller.port), timeout=10)
