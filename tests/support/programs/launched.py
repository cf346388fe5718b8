"""A launch without ``torchrun``: host agents in threads of this process, with real workers."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch.distributed as dist

from drlpp.runtime.hosts import launch
from drlpp.runtime.hosts.launch import Controller, serve_host
from drlpp.runtime.hosts.launched_process import Launch
from drlpp.runtime.ipc.time_limits import TimeLimits

TOKEN = b"a secret of at least sixteen bytes"
WITHOUT_RESTARTS = TimeLimits(restart_seconds=0.1)
"""Nobody starts a controller of this process anew."""


@contextmanager
def launched(
    nodes: list[int],
    host_agent_token: bytes = TOKEN,
    before_host_agents: Callable[[Controller], None] = lambda _: None,
    limits: TimeLimits = WITHOUT_RESTARTS,
) -> Iterator[Controller]:
    """Sessions of this process have one worker for each entry, on the node of that number."""
    store = dist.HashStore()
    first = Launch(0, len(nodes), nodes[0], controller="127.0.0.1", token=TOKEN, limits=limits)
    controller = Controller(first, store)
    before_host_agents(controller)
    host_agents = [
        threading.Thread(
            target=serve_host,
            args=(replace(first, rank=rank, node=node, token=host_agent_token), store),
        )
        for rank, node in enumerate(nodes)
        if rank
    ]
    for host_agent in host_agents:
        host_agent.start()
    launch._controller = controller
    try:
        yield controller
    finally:
        launch._controller = None
        controller.close()
        for host_agent in host_agents:
            host_agent.join(30)
            assert not host_agent.is_alive()


def connect(controller: Controller) -> socket.socket:
    """A stranger's connection to the controller."""
    address = controller.hello.address
    return socket.create_connection((address, controller.port), timeout=10)
