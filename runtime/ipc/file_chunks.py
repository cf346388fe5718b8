"""Files in chunks, as they travel from one host to another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

CHUNK_BYTES = 16 * 1024 * 1024


def chunks_of(path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """Yield where each chunk of a file begins, the chunk, and whether it is the last.

    An empty file is one empty chunk.
    """
    size, offset = path.stat().st_size, 0
    with path.open("rb") as file:
        while True:
            chunk = file.read(CHUNK_BYTES)
            yield offset, chunk, offset + len(chunk) >= size
            offset += len(chunk)
            if not chunk or offset >= size:
                return


def read_chunk(path: Path, offset: int) -> bytes:
    """Return a chunk of a file; one that is shorter than others is the last."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(CHUNK_BYTES)


def write_chunk(path: Path, offset: int, chunk: bytes, *, last: bool) -> None:
    """Write a chunk of a file that takes over its name when it is whole.

    Raises:
        OSError: it cannot be written, or a chunk before it was not; nothing of the file is left.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("ab" if offset else "wb") as file:
            if file.tell() != offset:
                raise OSError(f"{path.name}: a chunk is missing before byte {offset}")
            file.write(chunk)
        if last:
            partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
