"""Whether a model of the zoo fits into this machine, before any of it is allocated.

Its options may come from a file. Where memory is only promised, as on most systems, a model that is
too large would not fail but make the machine stop other programs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from drlpp.errors import InvalidModel
from drlpp.models.task import Option, Task

_MOST = {"layers": 1000, "sequence_length": 10_000, "frames": 10_000, "words": 10_000}
"""What a factory or its capture repeats takes time and memory, however small each part is."""


def check_size(factory: Callable[..., Task], options: Mapping[str, Option]) -> None:
    """Build the model without memory, and count what it would take.

    Raises:
        InvalidModel: weights, buffers and examples are more than this machine's memory.
        Exception: what the factory itself raises.
    """
    for name, most in _MOST.items():
        value = options.get(name)
        if isinstance(value, int | float) and value > most:
            raise InvalidModel(f"model {factory.__name__}: {name} is {value}; {most} is the most")
    with torch.device("meta"):
        task = factory(**options)
    tensors: list[Any] = [*task.module.parameters(), *task.module.buffers(), *task.inputs]
    if task.targets is not None:
        tensors.append(task.targets)
    needed = sum(tensor.nbytes for tensor in tensors)
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        raise InvalidModel(
            f"model {factory.__name__}: with these options its weights and one minibatch take "
            f"{needed / 1e9:,.1f} GB, more than the {available / 1e9:,.1f} GB of this machine"
        )
