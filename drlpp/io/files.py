"""How files are written: whole or not at all, or line by line; and a disk that refuses is told.

A kill loses at most the line that was being appended.
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import BaseModel

from drlpp.errors import InvalidFile, StorageFailure

_TEMPORARY = ".drlpp-temporary"
_TEMPORARY_OF_SAFETENSORS = re.compile(r"\.tmp[0-9A-Za-z]{6}")

_ERRORS = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS),
    *(errno.EACCES, errno.EPERM, errno.EIO),
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


def write_atomically(path: Path, data: bytes) -> Path:
    """Write ``data`` so that ``path`` never holds half of it.

    Raises:
        InvalidFile: nothing can be written there.
        StorageFailure: the disk is full or broken; ``path`` is as it was.
    """
    with reporting_disk_errors(path), replacing(path) as temporary:
        temporary.write_bytes(data)
    return path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Lend a temporary name in the same folder; what is written there is synced and takes over.

    If the block raises, ``path`` stays as it was.

    Raises:
        InvalidFile: nothing can be written there.
    """
    if path.is_dir():
        raise InvalidFile(f"{path}: is a folder, expected a file to write")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(_TEMPORARY, f".{path.name}.", path.parent)
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be written ({error.strerror})") from None
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
        # The new name has to survive a crash, too.
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def is_temporary(path: Path) -> bool:
    """Return whether a file is an unfinished one of :func:`replacing` or of safetensors."""
    ours = path.name.startswith(".") and path.name.endswith(_TEMPORARY)
    return ours or _TEMPORARY_OF_SAFETENSORS.fullmatch(path.name) is not None


def remove_temporary_files(folder: Path) -> None:
    """Remove what processes that were killed have left in a folder that nobody writes to now."""
    for path in folder.iterdir():
        if is_temporary(path):
            # A file system that refuses that will tell what matters.
            with suppress(OSError):
                path.unlink()


def append(path: Path, record: BaseModel | str, *, exclude_none: bool = False) -> None:
    """Append a record, or its text, as a line of JSON, and wait until the disk has it.

    Raises:
        StorageFailure: it cannot be written; the lines before are kept.
    """
    if not isinstance(record, str):
        record = record.model_dump_json(exclude_none=exclude_none)
    with reporting_disk_errors(path), path.open("ab") as file:
        file.write(record.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> tuple[list[str], bytes]:
    """Return the whole lines of a file, and a last half one; neither if there is no file.

    Raises:
        InvalidFile: it cannot be read.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return [], b""
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be read ({error})") from None
    complete, rest = content[: (end := content.rfind(b"\n") + 1)], content[end:]
    # Not splitlines, which also splits at separators within the text of a line.
    return complete.decode("utf-8", errors="replace").split("\n")[:-1], rest


def cut_off(path: Path, rest: bytes) -> None:
    """Remove the half line that :func:`read_lines` found, so that whole ones can be appended."""
    if rest:
        os.truncate(path, path.stat().st_size - len(rest))
