"""What a loader keeps from epoch to epoch that decides what it gives next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils.data import DataLoader

_DEEPEST = 5
_LONGEST_CONTAINER = 64


def begin_epoch(loader: DataLoader, number: int) -> None:
    """Prepare a loader for an epoch, counted from 0, whatever epochs it has seen before.

    Samplers and data sets that order their samples by the epoch, such as ``DistributedSampler``,
    learn which it is. Processes that ``persistent_workers`` kept are let go, since copies of the
    data set live in them, with a history that no checkpoint knows.
    """
    loader._iterator = None
    batches = loader.batch_sampler
    for part in (loader.dataset, loader.sampler, batches, getattr(batches, "sampler", None)):
        if callable(tell := getattr(part, "set_epoch", None)):
            tell(number)


def generators_of(loader: DataLoader) -> list[torch.Generator]:
    """Return each generator of its own that a loader, its samplers or its data set draw from, once.

    They are looked for in the attributes of these objects, and in the attributes of those.
    """
    found: dict[int, torch.Generator] = {}
    seen: set[int] = set()

    def visit(value: object, depth: int) -> None:
        if isinstance(value, torch.Generator):
            found.setdefault(id(value), value)
        elif depth < _DEEPEST and id(value) not in seen:
            seen.add(id(value))
            for inner in _parts_of(value):
                visit(inner, depth + 1)

    for name, value in vars(loader).items():
        # The iterator of persistent workers is let go of before each epoch.
        if name != "_iterator":
            visit(value, 1)
    return list(found.values())


def _parts_of(value: object) -> list[object]:
    """Return what may hold a generator: attributes, and the values of small containers."""
    if isinstance(value, Tensor | torch.nn.Module | type):
        return []
    if isinstance(value, Mapping | list | tuple):
        if len(value) > _LONGEST_CONTAINER:
            return []
        return list(value.values() if isinstance(value, Mapping) else value)
    return list(getattr(value, "__dict__", {}).values())


@contextmanager
def preserve_rng_state(loader: DataLoader) -> Iterator[None]:
    """Restore generators after an iteration that the next one must not notice."""
    generators = generators_of(loader)
    states = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
