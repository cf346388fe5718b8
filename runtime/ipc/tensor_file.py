"""Files of tensors in nested containers, such as checkpoints, that cannot run code when read.

The format is safetensors: the tensors stand one after another behind a header of JSON, which also
holds the containers around them (``structure`` in its metadata). Reading maps the file into memory,
so of a large checkpoint a worker reads what its stage needs. A tensor that stands in several places
is written once.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.utils import _pytree as pytree

from drlpp.errors import InvalidFile, StorageFailure
from drlpp.io.files import replacing, reporting_disk_errors

_FORMAT = "drlpp tree 1"


def write_checkpoint(path: Path, tree: object) -> None:
    """Write ``tree`` so that ``path`` holds the old file or the new one, whole, even after a crash.

    Args:
        path: of the file.
        tree: dicts, lists and tuples of tensors, numbers, strings and None, nested in any way; keys
            of a dict may be anything of these but a tensor.

    Raises:
        StorageFailure: the disk is full or cannot be written; ``path`` is as it was.
    """
    try:
        with replacing(path) as temporary:
            _write(temporary, tree)
    except (OSError, InvalidFile) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise StorageFailure(
            f"{path}: the checkpoint could not be written ({reason}); the last one is as it was, "
            "so free some space and continue from there"
        ) from None


def write_tree(path: Path, tree: object) -> None:
    """Write ``tree`` without the care of :func:`write_checkpoint`, for files that are read once.

    Raises:
        StorageFailure: the disk is full or cannot be written; no part of the file is left.
    """
    try:
        with reporting_disk_errors(path):
            _write(path, tree)
    except StorageFailure:
        path.unlink(missing_ok=True)
        raise


def write_state_dict(path: Path, state: Mapping[str, Tensor]) -> None:
    """Write weights as torch's users know them, with the same care as a checkpoint.

    Raises:
        StorageFailure: the disk is full or cannot be written; ``path`` is as it was.
    """
    try:
        with replacing(path) as temporary:
            torch.save(dict(state), temporary)
    # What torch says of a full disk is a RuntimeError about positions.
    except (OSError, RuntimeError, InvalidFile) as error:
        reason = " ".join(str(error).split())
        raise StorageFailure(f"{path}: the weights could not be written ({reason})") from None


def _write(path: Path, tree: object) -> None:
    """Write ``tree``; raise OSError, as other ways of writing do."""
    tensors: dict[str, Tensor] = {}
    structure = _Flattening(tensors).described(tree)
    metadata = {"format": _FORMAT, "structure": json.dumps(structure, separators=(",", ":"))}
    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from None


def read_checkpoint(path: Path) -> Any:
    """Read what :func:`write_checkpoint` or :func:`write_tree` wrote, without running any code.

    Tensors are mapped from the file: they are read when they are used, and writing to them changes
    no file.

    Raises:
        InvalidFile: it is missing, damaged, or another kind of file.
        MemoryError: it does not fit into the memory that this process may have.
    """
    if not path.is_file():
        raise InvalidFile(f"{path}: no such file")
    try:
        # safetensors takes a file that may not be read for one that is not there.
        path.open("rb").close()
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be read ({error.strerror})") from None
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != _FORMAT:
                found = repr(metadata.get("format", "no format"))[:80]
                raise InvalidFile(f"{path}: not a checkpoint; expected {_FORMAT!r}, found {found}")
            tensors = {name: _own_storage(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
        return _rebuilt(json.loads(metadata.get("structure", "")), tensors)
    except (InvalidFile, MemoryError):
        raise
    # Whatever a damaged file makes the libraries say; none of them runs code of the file.
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        if os.strerror(errno.ENOMEM) in reason:
            raise MemoryError(reason) from None
        raise InvalidFile(
            f"{path}: not a checkpoint, or a damaged one ({type(error).__name__}: {reason})"
        ) from None


def in_memory(tree: Any) -> Any:
    """Return a copy of what was read, in ordinary memory.

    Tensors in a file are aligned to 8 bytes, those in memory to 64, and matrix products may round
    differently for that. Whatever has to give the same bits as before the file needs this.
    """
    return pytree.tree_map_only(Tensor, torch.clone, tree)


class _Flattening:
    """Describes containers in JSON, and takes the tensors out of them.

    Args:
        tensors: are put there, by the names that the description uses.
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors = tensors
        self._described: dict[tuple[object, ...], object] = {}
        self._storages: set[int] = set()

    def described(self, tree: object) -> object:
        """Return ``tree`` in JSON: plain values as they are, all else as an object of one key."""
        match tree:
            case None | bool() | int() | float() | str():
                return tree
            case Tensor() if tree.is_complex():
                # Safetensors has no complex numbers of double precision.
                return {"complex": self._tensor(torch.view_as_real(tree.detach().resolve_conj()))}
            case Tensor():
                return self._tensor(tree.detach())
            case Mapping():
                pairs = [[self.described(key), self.described(tree[key])] for key in tree]
                return {"dict": pairs}
            case list() | tuple():
                kind = "list" if isinstance(tree, list) else "tuple"
                return {kind: [self.described(value) for value in tree]}
        raise TypeError(
            f"a checkpoint cannot hold a {type(tree).__name__}; only tensors, numbers, strings, "
            "None, and dicts, lists and tuples of them"
        )

    def _tensor(self, tensor: Tensor) -> object:
        storage = tensor.untyped_storage().data_ptr()
        place = (storage, tensor.storage_offset(), tensor.dtype, tensor.shape, tensor.stride())
        if storage and place in self._described:
            return self._described[place]
        # The order of dimensions in memory belongs to a tensor: kernels, and so roundings, follow.
        order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        stored = tensor.permute(order)
        if not stored.is_contiguous():
            order, stored = list(range(tensor.dim())), tensor.contiguous()
        elif storage in self._storages:
            # Another part of memory that is written already, which safetensors refuses.
            stored = stored.clone()
        self._storages.add(storage)
        name = str(len(self._tensors))
        self._tensors[name] = stored.cpu()
        ordered = all(a < b for a, b in pairwise(order))
        description = {"tensor": name} if ordered else {"tensor": name, "order": order}
        self._described[place] = description
        return description


def _rebuilt(description: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Rebuild what :class:`_Flattening` described."""
    if description is None or isinstance(description, bool | int | float | str):
        return description
    match description:
        case {"dict": [*pairs]}:
            return {_rebuilt(key, tensors): _rebuilt(value, tensors) for key, value in pairs}
        case {"list": [*values]}:
            return [_rebuilt(value, tensors) for value in values]
        case {"tuple": [*values]}:
            return tuple(_rebuilt(value, tensors) for value in values)
        case {"tensor": name, "order": [*order]}:
            stored = tensors[name]
            if sorted(order) != list(range(stored.dim())):
                raise ValueError(f"the order {order} of a tensor of shape {tuple(stored.shape)}")
            return stored.permute([order.index(dim) for dim in range(stored.dim())])
        case {"complex": pairs}:
            return torch.view_as_complex(_rebuilt(pairs, tensors))
        case {"tensor": name}:
            return tensors[name]
    raise ValueError("unknown kind of container")


def _own_storage(tensor: Tensor) -> Tensor:
    """Return the same memory as a storage of its own instead of a part of the whole file's."""
    begin = tensor.storage_offset() * tensor.element_size()
    storage = tensor.untyped_storage()[begin : begin + tensor.nbytes]
    return torch.empty(0, dtype=tensor.dtype).set_(storage, 0, tensor.shape, tensor.stride())
