"""The temporary folder of a session, which does not outlive the session however it ends.

A session that is closed, or whose program ends, removes its folder. If the controller is killed its
workers remove it, and if they are killed too, the next session on this machine: every folder holds
a file that its controller keeps locked, and the system unlocks it when that process is gone. The
folder of :mod:`multiprocessing` with the sockets of the server that workers are forked from, and of
a loader's processes, is kept in the same way; such folders of other programs lack that file.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import threading
import time
from contextlib import suppress
from multiprocessing import util
from pathlib import Path

from drlpp.runtime.ipc.time_limits import TimeLimits

_PREFIX = "drlpp-session-"
_PREFIXES = _PREFIX, "pymp-"
_LOCK = "drlpp-lock"
_POLL_SECONDS = 0.02

_one_thread = threading.Lock()


class SessionFolder(tempfile.TemporaryDirectory[str]):
    """A new folder, after those of controllers that were killed are removed."""

    def __init__(self) -> None:
        remove_abandoned(Path(tempfile.gettempdir()))
        super().__init__(prefix=_PREFIX)
        self._lock = _lock(Path(self.name))

    def cleanup(self) -> None:
        """Remove the folder; further calls do nothing."""
        super().cleanup()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def keep_socket_folder() -> None:
    """Have a folder for the sockets of :mod:`multiprocessing`, locked until this process ends."""
    with _one_thread:
        folder = Path(util.get_temp_dir())
        # Whoever cleans up old temporary files may have removed it.
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        if not (folder / _LOCK).exists():
            _lock(folder)


def _lock(folder: Path) -> int:
    """Lock ``folder``; return the file that keeps it locked for as long as it is open."""
    # Locked before it gets its name: whoever finds the name must find it locked.
    unnamed = folder / f".{_LOCK}"
    file = os.open(unnamed, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX)
    unnamed.rename(unnamed.with_name(_LOCK))
    return file


def remove_abandoned(parent: Path) -> None:
    """Remove the folders in ``parent`` of sessions, and for sockets, whose controllers are gone."""
    for prefix in _PREFIXES:
        for lock in parent.glob(f"{prefix}*/{_LOCK}"):
            _remove_if_abandoned(lock)


def _remove_if_abandoned(lock: Path) -> None:
    # It may be in use, or being removed by someone else; another user's may be anything.
    with suppress(OSError):
        found = lock.parent.lstat()
        if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
            return
        file = os.open(lock, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(lock.parent)
        finally:
            os.close(file)


def _remove(folder: Path) -> None:
    """Remove ``folder``, its lock last: by that it is found again if something appears meanwhile.

    A process that has not noticed yet that its controller is gone may be making a socket there.
    """
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != _LOCK:
            path.unlink(missing_ok=True)
    if [path.name for path in folder.iterdir()] == [_LOCK]:
        shutil.rmtree(folder, ignore_errors=True)


def remove_files_of_dead_controller(folder: Path) -> None:
    """Remove what nobody else will remove when the process that started this one is gone.

    Whatever a process that lives has locked stays, also if that is the one which started us: it
    closes its connection to a worker as well when the server that forks workers is gone.
    """
    folders = folder, Path(util.get_temp_dir())
    # A process that dies may end its workers' connections before it gives up its locks.
    give_up = time.monotonic() + TimeLimits.abandoned_seconds
    while True:
        for one in folders:
            _remove_if_abandoned(one / _LOCK)
        if not any(one.exists() for one in folders) or time.monotonic() > give_up:
            return
        time.sleep(_POLL_SECONDS)
