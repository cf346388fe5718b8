"""Distinguishing a disk that is full or cannot be written from other errors of the system."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drlpp.errors import StorageFailure

_ERRORS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
}


def is_storage_error(error: BaseException) -> bool:
    """Return whether the system refused to write: no space, a quota, a read-only or broken disk."""
    return isinstance(error, OSError) and error.errno in _ERRORS


@contextmanager
def reporting_disk_errors(path: Path) -> Iterator[None]:
    """Turn such an error in the block into a readable one.

    Raises:
        StorageFailure: naming ``path``, which is written there, and the system's reason.
    """
    try:
        yield
    except OSError as error:
        if not is_storage_error(error):
            raise
        raise StorageFailure(f"{path}: cannot be written ({error.strerror})") from None
