"""What an emulated cluster is called, and what is found of others.

The name says which process built the cluster: ``drlpp-<process>-<random>``. So what a killed
process left is not confused with what is in use. Namespaces and control groups are called by it.
The processes of a cluster carry it in their environment, which their children inherit.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import time
from contextlib import suppress
from pathlib import Path

MARK = "DRLPP_EMULATED_CLUSTER"
"""The environment variable with the cluster's name."""

_NAME = re.compile(r"drlpp-(\d+)-[0-9a-f]{6}")
_ENDING_SECONDS = 10.0


def new_name() -> str:
    """Return a name that no other cluster has."""
    return f"drlpp-{os.getpid()}-{secrets.token_hex(3)}"


def name_in(text: str) -> str | None:
    """Return the name of the cluster that a namespace, control group or environment belongs to."""
    found = _NAME.search(text)
    return found.group() if found else None


def in_use(name: str) -> bool:
    """Return whether the process that built the cluster still runs."""
    found = _NAME.fullmatch(name)
    assert found is not None
    return Path("/proc", found.group(1)).exists()


def marked_processes() -> dict[int, str]:
    """Return every process of an emulated cluster, with the cluster's name."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        # It may end while we look, and other users' are none of ours.
        with suppress(OSError):
            for entry in (folder / "environ").read_bytes().split(b"\0"):
                if entry.startswith(f"{MARK}=".encode()):
                    found[int(folder.name)] = entry.decode().partition("=")[2]
    return found


def end_processes(name: str) -> int:
    """Kill every process of a cluster, those included that escaped from their parents.

    Returns:
        How many there were.
    """
    ended: set[int] = set()
    give_up = time.monotonic() + _ENDING_SECONDS
    while time.monotonic() < give_up:
        alive = [process for process, mark in marked_processes().items() if mark == name]
        if not alive:
            break
        for process in alive:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        ended.update(alive)
        time.sleep(0.02)
    return len(ended)
