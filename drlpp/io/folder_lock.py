"""Keeping two processes from writing into one folder.

The system gives the lock up when the process that has it ends, however it ends. Whoever only reads
needs none.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from drlpp.errors import InvalidFile, InvalidInput

LOCK_NAME = ".lock"
"""The file in the folder that is locked; it says who has it, and is gone when nobody does."""

_TAKEN = {errno.EWOULDBLOCK, errno.EACCES}
"""What file systems say of another's lock; anything else, that they know no locks."""

_held: set[int] = set()


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
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, locked = _open_locked(path)
    except OSError as error:
        raise InvalidFile(f"{folder}: cannot be written ({error.strerror})") from None
    _held.add(descriptor)
    try:
        # Whose lock it is matters to error messages alone.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"pid {os.getpid()} on {socket.gethostname()}".encode())
        yield locked
    finally:
        _held.discard(descriptor)
        if locked:
            # While it is still locked: whoever has opened it by then finds that it is gone.
            with suppress(OSError):
                path.unlink()
        os.close(descriptor)


def _open_locked(path: Path) -> tuple[int, bool]:
    """The file, and whether it is locked."""
    while True:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                return descriptor, True
        except OSError as error:
            if error.errno not in _TAKEN:
                return descriptor, False
            holder = _holder(descriptor)
            os.close(descriptor)
            raise InvalidInput(
                f"{path.parent}: another process writes there{holder}; wait for it, or choose "
                "another --out"
            ) from None
        # Its last holder has removed it in the meantime.
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _holder(descriptor: int) -> str:
    """As it has written itself, nothing if it has not come to that."""
    with suppress(OSError, UnicodeDecodeError):
        if text := os.pread(descriptor, 200, 0).decode().strip():
            return f" ({text})"
    return ""


def _let_go() -> None:
    """A forked process, such as one of a loader's, must not hold on to what its parent holds."""
    for descriptor in _held:
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)
