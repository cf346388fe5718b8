"""Which library carries tensors between workers, and over which ways."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from drlpp.runtime.device.devices import DeviceFacts

Backend = Literal["gloo", "nccl"]
Route = tuple[int, int]
"""A way from one worker to another."""


@dataclass(frozen=True)
class Transport:
    """How the workers of a placement exchange tensors.

    Attributes:
        backend: the library.
        directed: a group for each direction of each pair, instead of tags in a group of all.
        staged: tensors are copied to the host's memory and back.
    """

    backend: Backend = "gloo"
    directed: bool = False
    staged: bool = False


def transport_of(devices: Iterable[DeviceFacts]) -> Transport:
    """Choose NCCL where every worker has a GPU of its own, Gloo everywhere else.

    Two workers on one GPU cannot be in one group of NCCL.
    """
    known = list(devices)
    gpus = {device.identity for device in known if device.type == "cuda"}
    if len(gpus) == len(known) > 1:
        return Transport("nccl", directed=True)
    return Transport(staged=bool(gpus))
