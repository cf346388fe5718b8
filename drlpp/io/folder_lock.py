"""Keeping two processes from writing into one folder.

The system gives the lock up when the process that has it ends, however it ends. Whoever only reads
needs no lock.
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

_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
"""What file systems that know no locks say."""

_held: set[int] = set()
"""Locked files, which forked processes, such as those of a loader, do not hold on to."""


def _let_go() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


@contextmanager
def locked_folder(folder: Path) -> Iterator[bool]:
    """Hold a folder, which is made if need be, for the length of the block.

    Yields:
        Whether nobody else can hold it meanwhile: False on a file system that knows no locks.

    Raises:
        InvalidInput: another process holds it.
        InvalidFile: it cannot be written.
    """
    path, descriptor = folder / LOCK_NAME, None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _locked(path)
    except BlockingIOError:
        raise InvalidInput(
            f"{folder}: another process writes there{_holder(path)}; wait for it, or choose "
            "another --out"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise InvalidFile(f"{folder}: cannot be written ({error.strerror})") from None
    if descriptor is None:
        yield False
        return
    _held.add(descriptor)
    # Whose lock it is matters to error messages alone.
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"pid {os.getpid()} on {socket.gethostname()}".encode())
    try:
        yield True
    finally:
        # Not in a forked process.
        if descriptor in _held:
            _held.remove(descriptor)
            # While it is still locked: whoever has opened it by then finds that it is gone.
            with suppress(OSError):
                path.unlink()
            os.close(descriptor)


def _locked(path: Path) -> int:
    """Return the lock file, opened and locked.

    Raises:
        BlockingIOError: another process has it.
        OSError: it cannot be written, or the file system knows no locks.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its holder may have removed it between our opening it and locking it.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _holder(path: Path) -> str:
    """Return what the holder has written about itself, nothing if it has not done so yet."""
    with suppress(OSError, UnicodeDecodeError):
        if text := path.read_bytes()[:200].decode().strip():
            return f" ({text})"
    return ""
