"""Counting the memory that tensors take on a processor, where torch does not.

An accelerator that is a processor may be said to have so much memory. The counter sees what every
operator makes, and when it is freed, so that a stage which needs more fails there as it would on a
GPU. That takes some microseconds of every operator, so it counts only until memory repeats itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from drlpp.errors import OutOfMemory
from drlpp.schedule.actions import (
    Action,
    Backward,
    BackwardWeight,
    Forward,
    MicrobatchId,
    Update,
)


class MemoryCount(TorchDispatchMode):
    """While it is entered, counts the bytes of what operators make; of what dies, at any time.

    Memory that tensors had before is left out unless :meth:`hold` is told of it, with all views of
    it; and so is what libraries and compiled code allocate by themselves.

    Args:
        limit_bytes: above it an operator raises ``OutOfMemory``.
        holder: what needs the memory, such as ``worker 0 (stage 0)``.

    Attributes:
        bytes_: now.
    """

    def __init__(self, limit_bytes: float, holder: str) -> None:
        super().__init__()
        self._limit = limit_bytes
        self._holder = holder
        self._alive: dict[int, tuple[weakref.ref[Any], int]] = {}
        self.bytes_ = self._peak_bytes = 0

    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Count tensors that are there already.

        Raises:
            OutOfMemory: they need too much.
        """
        for key, (freed, known) in self._alive.items():
            # ``fully_shard`` resizes what it gathers weights in.
            if (there := freed()) is not None and (bytes_ := there.nbytes()) != known:
                self._alive[key] = freed, bytes_
                self.bytes_ += bytes_ - known
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if (key := storage._cdata) not in self._alive:
                freed = weakref.ref(storage, partial(self._free, key))
                self._alive[key] = freed, storage.nbytes()
                self.bytes_ += storage.nbytes()
        self._peak_bytes = max(self._peak_bytes, self.bytes_)
        if self.bytes_ > self._limit:
            raise OutOfMemory(
                f"{self._holder} needs {self.bytes_:,} bytes or more, and its accelerator has "
                f"{self._limit:,.0f} bytes of memory"
            )

    def peak_memory_bytes(self) -> int:
        """Return the most that was counted at any time."""
        return self._peak_bytes

    def _free(self, key: int, _: object) -> None:
        self.bytes_ -= self._alive.pop(key)[1]

    def __torch_dispatch__(
        self,
        function: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            # A tensor of shards has the size of the whole. What it makes of its parts comes here.
            return NotImplemented
        made = function(*args, **(kwargs or {}))
        new = [t for t in _dense(made) if t.untyped_storage()._cdata not in self._alive]
        if new:
            # Views of what is not counted are not, either.
            given = {tensor.untyped_storage()._cdata for tensor in _dense((args, kwargs))}
            self.hold(t for t in new if t.untyped_storage()._cdata not in given)
        return made


def _dense(values: Any) -> list[Tensor]:
    """Return the tensors among values that have memory of a processor themselves."""
    found = [values] if isinstance(values, Tensor) else pytree.tree_leaves(values)
    return [
        value
        for value in found
        if isinstance(value, Tensor)
        and type(value).__torch_dispatch__ is Tensor.__torch_dispatch__
        and value.is_cpu
        and value.layout is torch.strided
    ]


def repeats_after(actions: Sequence[Action]) -> int | None:
    """Return after how many minibatches the memory of a worker repeats itself, None if it does not.

    It has been at its most when those parts are done of which as many are in flight as ever, and
    after two updates: the first begins the optimizer's state.
    """
    in_flight, first = set[tuple[int, MicrobatchId]](), set[tuple[int, MicrobatchId]]()
    updates, found = 0, None
    for action in actions:
        match action:
            case Forward():
                in_flight.add((action.chunk, action.part))
                if len(in_flight) > len(first):
                    first, found = set(in_flight), None
            case Backward() | BackwardWeight():
                in_flight.discard((action.chunk, action.part))
            case Update():
                updates += 1
                if updates > 1 and found is None and not first & in_flight:
                    found = action.through
    return found
