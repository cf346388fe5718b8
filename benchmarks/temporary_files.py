"""A folder for every temporary file of a program, so that one left behind is seen."""

from __future__ import annotations

import multiprocessing.util
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def temporary_files_in(folder: str | Path) -> Iterator[None]:
    """Put every temporary file of this process there, except for multiprocessing's socket."""
    # Its folder outlives the block.
    multiprocessing.util.get_temp_dir()
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before
