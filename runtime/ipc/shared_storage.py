"""Files that all hosts reach: in a folder that they share, or behind a URL, by fsspec.

A file is there whole or not at all: in a folder it takes over by its name, and stores of objects
have no half ones.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from drlpp.errors import DRLPPError, InvalidInput, StorageFailure
from drlpp.io.documents import replacing


class SharedStorage(ABC):
    """Files by names, which may have a folder: ``12/worker-0.safetensors``.

    Every method raises :class:`~drlpp.errors.StorageFailure` where the storage fails.

    Attributes:
        location: as the user gave it.
    """

    location: str

    @abstractmethod
    def put(self, path: Path, name: str) -> None:
        """Store a copy of a file of this machine."""

    @abstractmethod
    def get(self, name: str, folder: Path) -> Path:
        """Return the file itself, or a copy in ``folder``."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Return whether there is such a file."""

    @abstractmethod
    def folders(self) -> list[str]:
        """Return the names of the folders."""

    @abstractmethod
    def remove_folder(self, name: str) -> None:
        """Remove a folder, if there is one, with all in it."""


@lru_cache(maxsize=8)
def storage_at(location: str) -> SharedStorage:
    """Return the storage at a folder's path or a URL.

    Raises:
        InvalidInput: the URL is none that fsspec knows, or it lacks a package for it.
    """
    return _Url(location) if "://" in location else _Folder(location)


class _Folder(SharedStorage):
    def __init__(self, location: str) -> None:
        self.location = location
        self._path = Path(location)

    def put(self, path: Path, name: str) -> None:
        with _told(f"{self.location}/{name}"), replacing(self._path / name) as temporary:
            shutil.copyfile(path, temporary)

    def get(self, name: str, folder: Path) -> Path:
        return self._path / name

    def exists(self, name: str) -> bool:
        return (self._path / name).is_file()

    def folders(self) -> list[str]:
        with _told(self.location):
            return [path.name for path in self._path.iterdir() if path.is_dir()]

    def remove_folder(self, name: str) -> None:
        with _told(f"{self.location}/{name}"):
            if (self._path / name).is_dir():
                shutil.rmtree(self._path / name)


class _Url(SharedStorage):
    def __init__(self, location: str) -> None:
        # Whoever keeps checkpoints in files starts sooner without it.
        from fsspec.core import url_to_fs

        self.location = location
        try:
            self._system, root = url_to_fs(location)
        except (ValueError, ImportError) as error:
            raise InvalidInput(f"{location}: fsspec cannot open this ({error})") from None
        self._root = root.rstrip("/")

    def put(self, path: Path, name: str) -> None:
        with _told(f"{self.location}/{name}"):
            target = f"{self._root}/{name}"
            self._system.makedirs(target.rpartition("/")[0], exist_ok=True)
            self._system.put_file(str(path), target)

    def get(self, name: str, folder: Path) -> Path:
        found = folder / name.replace("/", "-")
        with _told(f"{self.location}/{name}"):
            self._system.get_file(f"{self._root}/{name}", str(found))
        return found

    def exists(self, name: str) -> bool:
        with _told(f"{self.location}/{name}"):
            # Another host may have written it since it was listed here.
            self._system.invalidate_cache()
            return bool(self._system.isfile(f"{self._root}/{name}"))

    def folders(self) -> list[str]:
        with _told(self.location):
            self._system.invalidate_cache()
            found = self._system.ls(self._root, detail=True)
            names = [one["name"] for one in found if one["type"] == "directory"]
            return [name.rstrip("/").rpartition("/")[2] for name in names]

    def remove_folder(self, name: str) -> None:
        with _told(f"{self.location}/{name}"):
            if self._system.isdir(f"{self._root}/{name}"):
                self._system.rm(f"{self._root}/{name}", recursive=True)


@contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except StorageFailure:
        raise
    # Every kind of storage has errors of its own.
    except Exception as error:
        reason = str(error) if isinstance(error, DRLPPError) else f"{type(error).__name__}: {error}"
        raise StorageFailure(
            f"{what}: cannot be read or written ({' '.join(reason.split())[:200]})"
        ) from None
