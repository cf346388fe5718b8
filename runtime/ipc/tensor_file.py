"""Files of tensors in nested containers, such as checkpoints, that cannot run code when read.

They are torch's own, of tensors and plain values alone. Reading maps the file into memory, so of a
large checkpoint a worker reads what its stage needs.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drlpp.errors import InvalidFile, StorageFailure
from drlpp.io.files import replacing, reporting_disk_errors


def write_checkpoint(path: Path, tree: object, what: str = "checkpoint") -> None:
    """Write ``tree`` so that ``path`` holds the old file or the new one, whole, even after a crash.

    Args:
        path: of the file.
        tree: dicts, lists and tuples of tensors, numbers, strings and None, nested in any way; keys
            of a dict may be anything of these but a tensor.
        what: it is, for an error.

    Raises:
        StorageFailure: the disk is full or cannot be written; ``path`` is as it was.
    """
    try:
        with replacing(path) as temporary:
            _write(temporary, tree)
    except (OSError, InvalidFile) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise StorageFailure(
            f"{path}: the {what} could not be written ({reason}); the last one is as it was, so "
            "free some space and continue from there"
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


def _write(path: Path, tree: object) -> None:
    plain = _plain(tree, {})
    # A file of Python's: by a name of its own torch does not say why the system refuses.
    with path.open("wb") as file:
        try:
            torch.save(plain, file)
        except RuntimeError as error:
            refused: BaseException | None = error
            while refused is not None and not isinstance(refused, OSError):
                refused = refused.__context__
            raise refused or error from None


def _plain(tree: object, copies: dict[Hashable, Tensor]) -> Any:
    """Return what is read without running code, and has no more memory than its tensors need.

    ``copies`` has parts of larger memory, and expanded ones, by their place in it.
    """
    match tree:
        case None | bool():
            return tree
        case int() | float() | str():
            # Of a subclass, such as numpy's, the value.
            return next(kind(tree) for kind in (int, float, str) if isinstance(tree, kind))
        case Tensor():
            found, storage = tree.detach().resolve_conj().cpu(), tree.untyped_storage()
            if storage.nbytes() == found.nbytes:
                return found
            place = storage.data_ptr(), tree.storage_offset(), tree.dtype, tree.shape, tree.stride()
            return copies.setdefault(place, found.clone())
        case Mapping():
            return {_plain(key, copies): _plain(tree[key], copies) for key in tree}
        case list():
            return [_plain(value, copies) for value in tree]
        case tuple():
            return tuple(_plain(value, copies) for value in tree)
    raise TypeError(
        f"a checkpoint cannot hold a {type(tree).__name__}; only tensors, numbers, strings, "
        "None, and dicts, lists and tuples of them"
    )


def read_checkpoint(path: Path) -> Any:
    """Read what :func:`write_checkpoint` or :func:`write_tree` wrote, without running any code.

    Tensors are mapped from the file: they are read when they are used, and writing to them changes
    no file. They are aligned as in memory, so that the same operators give the same bits.

    Raises:
        InvalidFile: it is missing, damaged, or another kind of file.
        MemoryError: it does not fit into the memory that this process may have.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except FileNotFoundError:
        raise InvalidFile(f"{path}: no such file") from None
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be read ({error.strerror})") from None
    except MemoryError:
        raise
    # Whatever a damaged file makes torch say; nothing of it runs code of the file.
    except Exception as error:
        # Without the advice behind it, such as to trust the file.
        reason = " ".join(str(error).split()).partition(". ")[0][:200]
        if "Cannot allocate memory" in str(error):
            raise MemoryError(reason) from None
        raise InvalidFile(
            f"{path}: not a checkpoint, or a damaged one ({type(error).__name__}: {reason})"
        ) from None
