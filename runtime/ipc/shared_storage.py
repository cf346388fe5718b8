"""Files that all hosts reach: in a folder that they share, or behind a URL, by fsspec.

A file is there whole or not at all: in a folder it takes over by its name, and stores of objects
have no half ones.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from drlpp.errors import DRLPPError, InvalidInput, StorageFailure
from drlpp.io.files import replacing


class SharedStorage:
    """Files at a folder's path or a URL, by names, which may have a folder: ``12/worker-0.pt``.

    Every method raises :class:`~drlpp.errors.StorageFailure` where the storage fails.

    Raises:
        InvalidInput: the URL is none that fsspec knows, or it lacks a package for it.
    """

    def __init__(self, location: str) -> None:
        self.location = location
        # A folder's files are used where they are.
        self._folder = None if "://" in location else Path(location)
        try:
            # torch brings it, but needs not.
            from fsspec.core import url_to_fs

            self._system, root = url_to_fs(location)
        except (ValueError, ImportError) as error:
            raise InvalidInput(
                f"{location}: fsspec cannot open this ({error}); pip install 'drlpp[remote]'"
            ) from None
        self._root = root.rstrip("/")

    def put(self, path: Path, name: str) -> None:
        """Store a copy of a file of this machine."""
        with self._told(name):
            if self._folder is not None:
                with replacing(self._folder / name) as temporary:
                    shutil.copyfile(path, temporary)
                return
            target = f"{self._root}/{name}"
            self._system.makedirs(target.rpartition("/")[0], exist_ok=True)
            self._system.put_file(str(path), target)

    def get(self, name: str, folder: Path) -> Path:
        """Return the file itself, or a copy in ``folder``."""
        if self._folder is not None:
            return self._folder / name
        found = folder / name.replace("/", "-")
        with self._told(name):
            self._system.get_file(f"{self._root}/{name}", str(found))
        return found

    def exists(self, name: str) -> bool:
        """Return whether there is such a file."""
        with self._told(name):
            # Another host may have written it since it was listed here.
            self._system.invalidate_cache()
            return bool(self._system.isfile(f"{self._root}/{name}"))

    def folders(self) -> list[str]:
        """Return the names of the folders."""
        with self._told():
            self._system.invalidate_cache()
            found = self._system.ls(self._root, detail=True)
            names = [one["name"] for one in found if one["type"] == "directory"]
            return [name.rstrip("/").rpartition("/")[2] for name in names]

    def remove_folder(self, name: str) -> None:
        """Remove a folder, if there is one, with all in it."""
        with self._told(name):
            if self._system.isdir(f"{self._root}/{name}"):
                self._system.rm(f"{self._root}/{name}", recursive=True)

    @contextmanager
    def _told(self, name: str = "") -> Iterator[None]:
        try:
            yield
        except StorageFailure:
            raise
        # Every kind of storage has errors of its own.
        except Exception as error:
            what = f"{self.location}/{name}" if name else self.location
            told = isinstance(error, DRLPPError)
            reason = str(error) if told else f"{type(error).__name__}: {error}"
            raise StorageFailure(
                f"{what}: cannot be read or written ({' '.join(reason.split())[:200]})"
            ) from None


storage_at = lru_cache(maxsize=8)(SharedStorage)
"""The storage at a location."""
