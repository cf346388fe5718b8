"""How this program joins a Ray cluster, and what it finds there."""

from __future__ import annotations

import logging
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import ray
from ray._private.services import canonicalize_bootstrap_address_or_die
from ray.exceptions import AuthenticationError

from drlpp.errors import InvalidInput
from drlpp.runtime.hosts.on_ray.host import reason_of
from drlpp.runtime.hosts.on_ray.nodes import RayNode, in_order, kind_of_accelerators

_POLL_SECONDS = 0.5
_NODE_SECONDS = 2.0
_HEAD_SECONDS = 10.0


def connect(address: str) -> None:
    """Connect this program to a Ray cluster, if it is not.

    Args:
        address: ``auto`` for the one that this machine belongs to, or ``HOST:PORT`` of its head.

    Raises:
        InvalidInput: there is none, it refuses this program, or it has other versions.
    """
    given = address
    if address == "auto" and not ray.is_initialized():
        given = os.environ.get("RAY_ADDRESS", "")
    if "://" in given:
        raise InvalidInput(
            f"{given} is no address of a head, and this program has to run on a host of the "
            "cluster: start it there (ssh, `ray job submit`), and give auto or HOST:PORT"
        )
    if ray.is_initialized():
        there = gcs_address()
        if address != "auto" and _resolved(address) != there:
            raise InvalidInput(
                f"this program belongs to the Ray cluster {there} already, and cannot use "
                f"{address} as well; begin another program, or call ray.shutdown() before"
            )
        return
    try:
        _wait_for_head(address)
        # Hosts' processes print nothing that a user should read; errors are ours to say.
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except InvalidInput:
        raise
    except (AuthenticationError, ConnectionError, ValueError, RuntimeError) as error:
        if address == "auto" and "RAY_ADDRESS" in str(error):
            raise InvalidInput(
                "no Ray cluster runs on this machine; start one (`ray start --head`), or name "
                "the address of another's head"
            ) from None
        raise _unusable(address, reason_of(error)) from None


def _wait_for_head(address: str) -> None:
    """Wait until a cluster's head takes this program; Ray would try for many minutes.

    Raises:
        InvalidInput: it does not.
    """
    name, _, port = canonicalize_bootstrap_address_or_die(address).rpartition(":")
    give_up = time.monotonic() + _HEAD_SECONDS
    encrypted = os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")
    while not listens(name, int(port), greeted=not encrypted):
        if time.monotonic() > give_up:
            raise _unusable(address, f"no word from {name}:{port} in {_HEAD_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)


def _unusable(address: str, reason: str) -> InvalidInput:
    return InvalidInput(
        f"the Ray cluster {address} cannot be reached, or refuses this program ({reason}); one "
        "that was started with RAY_AUTH_MODE=token takes only programs with RAY_AUTH_MODE=token "
        "and the same secret in RAY_AUTH_TOKEN, and one with RAY_USE_TLS=1 only those with that "
        "and its certificate (RAY_TLS_SERVER_CERT, RAY_TLS_SERVER_KEY, RAY_TLS_CA_CERT)"
    )


def nodes_of_cluster() -> list[RayNode]:
    """Return the nodes that are alive, that of the controller first.

    Ray itself takes a minute to notice that one is gone, so each is asked.
    """
    here = ray.get_runtime_context().get_node_id()
    nodes = [RayNode.of(node) for node in ray.nodes() if node["Alive"]]
    with ThreadPoolExecutor(max_workers=len(nodes) or 1) as pool:
        answers = pool.map(lambda node: listens(node.address, node.port), nodes)
    there = [node for node, answer in zip(nodes, answers, strict=True) if answer]
    return in_order(there, here)


def listens(address: str, port: int, *, greeted: bool = False) -> bool:
    """Return whether a server takes connections there.

    With ``greeted`` it has to speak first, as Ray's do, unless they expect encryption.
    """
    with suppress(OSError), socket.create_connection((address, port), _NODE_SECONDS) as line:
        return not greeted or bool(line.recv(1))
    return False


def accelerators_of_cluster(address: str, *, gpus: bool = True) -> int:
    """Return how many workers a Ray cluster has room for."""
    connect(address)
    nodes = nodes_of_cluster()
    kind = kind_of_accelerators(nodes, gpus=gpus)
    return sum(node.resources[kind] for node in nodes)


def _resolved(address: str) -> str:
    host, _, port = address.rpartition(":")
    with suppress(OSError):
        host = socket.gethostbyname(host)
    return f"{host}:{port}"


def gcs_address() -> str:
    """Return where the head of this program's cluster is."""
    return str(ray.get_runtime_context().gcs_address)
