"""Packages that a user has trusted for a run stay trusted for its folder.

So ``--resume`` needs no ``--trust`` again, and ``drlpp train`` takes the placement that
``train_agent.py mymodels:f`` has left. What is remembered stands in the user's own state
folder, not in the run's: a folder that comes from somebody else brings no trust with it. It holds
as long as the folder's ``run.json`` is the file that this user's run has written there (a file that
is unpacked or copied over it has another number and time of change, which nobody can choose), and
each package is found where it was.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from drlpp.errors import InvalidFile
from drlpp.io.documents import Document, read_document, write_document
from drlpp.io.importing import ImportedByName, place_of
from drlpp.io.run_folder import RECORD_NAME
from drlpp.io.trust import named_in


class TrustRecord(Document):
    """What is trusted for one folder.

    Attributes:
        folder: its path, links resolved.
        run: number and time of change, in nanoseconds, of the record of the run in it.
        packages: by name, where each was imported from; None where that is unknown.
    """

    kind: ClassVar[str] = "trust"

    folder: str
    run: tuple[int, int]
    packages: dict[str, str | None]


def remember_trust(folder: Path, named: Iterable[ImportedByName]) -> str | None:
    """Have the packages that the run in ``folder`` imported trusted there from now on.

    Returns:
        Why that is not possible, in words for the user; None if it is done, or nothing to do.
    """
    packages = {one.package for record in named for one in named_in(record) if one.package}
    if not packages:
        return None
    try:
        record = TrustRecord(
            folder=str(folder.resolve()),
            run=_run_of(folder),
            packages={package: place_of(package) for package in sorted(packages)},
        )
        path = _path_for(folder)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_document(path, record).chmod(0o600)
    except (OSError, RuntimeError, InvalidFile) as error:
        return (
            f"what is trusted for {folder} cannot be remembered ({error}); give --trust again to "
            "continue"
        )
    return None


def remembered_trust(folder: Path) -> frozenset[str]:
    """Return the packages that this user has trusted for the run in ``folder``.

    Return none if in doubt.
    """
    try:
        path = _path_for(folder)
        about = path.stat()
        if about.st_uid != os.getuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return frozenset()
        record = read_document(path, TrustRecord)
        if record.folder != str(folder.resolve()) or record.run != _run_of(folder):
            return frozenset()
    # Absent, damaged, or no home at all: then the user says it again.
    except (OSError, RuntimeError, InvalidFile):
        return frozenset()
    return frozenset(name for name, place in record.packages.items() if place_of(name) == place)


def _run_of(folder: Path) -> tuple[int, int]:
    about = (folder / RECORD_NAME).stat()
    return about.st_ino, about.st_ctime_ns


def _path_for(folder: Path) -> Path:
    """Return the file for a folder.

    Each folder has its own, so that runs that begin at once do not write over each other.
    """
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    root = given if given.is_absolute() else Path.home() / ".local" / "state"
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:32]
    return root / "drlpp" / "trusted" / f"{name}.json"
