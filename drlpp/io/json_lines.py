"""Files of JSON lines, appended to: a kill loses at most the line that was being written."""

from __future__ import annotations

import os
from pathlib import Path

from drlpp.errors import InvalidFile
from drlpp.io.disk_errors import reporting_disk_errors
from drlpp.io.documents import Record


def append(path: Path, record: Record) -> None:
    """Append a record as a line, like :func:`append_line`."""
    append_line(path, record.model_dump_json().encode())


def append_line(path: Path, line: bytes) -> None:
    """Append a line, and wait until the disk has it.

    Raises:
        StorageFailure: it cannot be written; the lines before are kept.
    """
    with reporting_disk_errors(path), path.open("ab") as file:
        file.write(line + b"\n")
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
