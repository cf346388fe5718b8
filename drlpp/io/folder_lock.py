"""Keeping two processes from writing into one folder.

The system gives the lock up when the process that has it ends, however it ends. Whoever only reads
needs no lock.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from drlpp.errors import InvalidFile, InvalidInput

LOCK_NAME = ".lock"
"""The file in the folder that is locked; it says who has it, and is gone when nobody does."""

_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
"""What file systems that know no locks say."""

_RETRY_SECONDS = 0.1
"""Pause for a lock file that its holder removes between our opening it and locking it."""


@contextmanager
def locked_folder(folder: Path) -> Iterator[bool]:
    """Hold a folder, which is made if need be, for the length of the block.

    Yields:
        Whether nobody else can hold it meanwhile: False on a file system that knows no locks.

    Raises:
        InvalidInput: another process holds it.
        InvalidFile: it cannot be written.
    """
    path = folder / LOCK_NAME
    # Forked processes, such as those of a loader, do not hold on to what their parent holds.
    lock = FileLock(path, timeout=_RETRY_SECONDS, fallback_to_soft=False, on_acquired=_sign)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise InvalidInput(
            f"{folder}: another process writes there{_holder(path)}; wait for it, or choose "
            "another --out"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise InvalidFile(f"{folder}: cannot be written ({error.strerror})") from None
    try:
        yield lock.is_locked
    finally:
        if lock.is_locked:
            # While it is still locked: whoever has opened it by then finds that it is gone.
            with suppress(OSError):
                path.unlink()
        lock.release()


def _sign(descriptor: int) -> None:
    # Whose lock it is matters to error messages alone.
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()} on {socket.gethostname()}".encode(), 0)


def _holder(path: Path) -> str:
    """Return what the holder has written about itself, nothing if it has not done so yet."""
    with suppress(OSError, UnicodeDecodeError), path.open("rb") as file:
        if text := file.read(200).decode().strip():
            return f" ({text})"
    return ""
