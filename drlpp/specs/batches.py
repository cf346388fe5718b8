"""Batches: tensors in tuples, lists, dictionaries, or whatever else torch knows as a pytree.

A batch keeps the structure in which its model takes it. The order of its tensors is that of
:func:`tensors_in`, and workers know the tensors by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from drlpp.errors import InvalidInput

Batch = Any
"""A tensor, or tuples, lists and dictionaries of them, however deep."""

Structure = TypeVar("Structure")


def tensors_in(batch: Batch) -> tuple[Tensor, ...]:
    """Return the tensors of a batch in their order."""
    return tuple(pytree.tree_leaves(batch))


def named_tensors(name: str, batch: Batch) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a batch by their names, such as ``inputs['mask']``, ``inputs[0]``."""
    for path, value in pytree.tree_leaves_with_path(batch):
        yield name + pytree.keystr(path), value


def chosen(batch: Structure, which: slice | Tensor) -> Structure:
    """Return some samples of a batch."""
    return pytree.tree_map(lambda tensor: tensor[which], batch)


def equal_part(batch: Structure, number: int, parts: int) -> Structure:
    """Return one of so many equal parts of a batch, counted from 0."""
    size = len(tensors_in(batch)[0]) // parts
    return chosen(batch, slice(number * size, (number + 1) * size))


def joined(batches: Sequence[Structure]) -> Structure:
    """Return the samples of several batches, one after the other."""
    columns = zip(*map(tensors_in, batches), strict=True)
    return pytree.tree_unflatten(map(torch.cat, columns), pytree.tree_structure(batches[0]))


def call(module: nn.Module, inputs: Batch) -> Any:
    """Call a module with its inputs: a dictionary gives keywords, a tuple positional arguments."""
    positional, keywords = as_arguments(inputs)
    return module(*positional, **keywords)


def as_arguments(inputs: Batch) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional arguments and the keywords that inputs stand for."""
    return ((), dict(inputs)) if isinstance(inputs, Mapping) else (tuple(inputs), {})


def with_plain_containers(batch: Batch) -> Batch:
    """Return a batch in which every mapping, such as a tokenizer's, is a dictionary."""
    if isinstance(batch, Mapping):
        return {key: with_plain_containers(value) for key, value in batch.items()}
    if type(batch) in (tuple, list):
        return type(batch)(map(with_plain_containers, batch))
    return batch


def arranged_like(example: Batch, batch: Batch, name: str) -> Batch:
    """Return the tensors of a batch in the structure of an example.

    Lists and tuples are the same here, and so are dictionaries in any order.

    Args:
        example: of the structure.
        batch: anything.
        name: of the batch, for error messages.

    Raises:
        InvalidInput: the structure is another; it names the part that differs.
    """
    kind = f"a {type(batch).__name__}"
    if isinstance(example, Mapping):
        found = batch if isinstance(batch, Mapping) else {}
        if missing := [key for key in example if key not in found]:
            raise InvalidInput(
                f"{name} has no {' and no '.join(map(repr, missing))}, only "
                f"{', '.join(map(repr, found)) or kind}"
            )
        return {key: arranged_like(example[key], found[key], f"{name}[{key!r}]") for key in example}
    if isinstance(example, tuple | list):
        if not isinstance(batch, tuple | list) or len(batch) != len(example):
            number = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
            raise InvalidInput(f"{name} is {kind}{number}; expected a tuple of {len(example)}")
        parts = [
            arranged_like(known, value, f"{name}[{index}]")
            for index, (known, value) in enumerate(zip(example, batch, strict=True))
        ]
        return type(example)(*parts) if hasattr(example, "_fields") else type(example)(parts)
    if not isinstance(batch, Tensor):
        of = f" of {type(batch[0]).__name__}" if isinstance(batch, tuple | list) and batch else ""
        raise InvalidInput(f"{name} is {kind}{of}; expected a tensor")
    return batch
