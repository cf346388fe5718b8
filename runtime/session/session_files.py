"""The files of a session: in a folder on the controller's host, and copies on the other hosts."""

from __future__ import annotations

import tempfile
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path

from drlpp.io.disk_errors import reporting_disk_errors
from drlpp.runtime.hosts.host import WorkerHost
from drlpp.runtime.hosts.present_workers import PresentWorkers, asked
from drlpp.runtime.hosts.session_hosts import Hosts
from drlpp.runtime.ipc.session_folder import SessionFolder
from drlpp.runtime.ipc.tensor_file import write_tree


class SessionFiles:
    """What commands name: every host has its own copy, or the folder itself.

    Args:
        folder: on the controller's host; removed by :meth:`close`.
        hosts: of the session.
        present: the workers that there are, whose hosts get copies.

    Attributes:
        folder: its path.
    """

    def __init__(self, folder: SessionFolder, hosts: Hosts, present: PresentWorkers) -> None:
        self.folder = Path(folder.name)
        self._own = folder
        self._hosts = hosts
        self._present = present
        self._numbers = count(1)

    def write(self, file: str, content: object) -> None:
        """Write a tree of tensors for all hosts.

        Raises:
            StorageFailure: there is no room for it.
            HostLost: a host does not answer.
        """
        path = self.folder / file
        with telling_of_temporary_files():
            # Workers may still have the old file mapped, which has to stay as it is.
            path.unlink(missing_ok=True)
            write_tree(path, content)
            self.publish(file)

    def lend(self, path: Path) -> str:
        """Publish a file of the user.

        Returns:
            Its name in the folder.
        """
        file = f"checkpoint-{next(self._numbers)}"
        with telling_of_temporary_files():
            (self.folder / file).symlink_to(path.absolute())
            self.publish(file)
        return file

    def publish(self, file: str) -> None:
        """Give every host its copy of a file that is in the folder here.

        Raises:
            HostLost: a host does not answer.
        """
        for host in self._present.hosts:
            self.publish_to(host, file)

    def publish_to(self, host: WorkerHost, file: str) -> None:
        """Give one host its copy.

        Raises:
            HostLost: it does not answer.
        """
        asked(host, host.publish, self.folder / file)

    def remove(self, file: str) -> None:
        """Remove a file here and on every host; processes that have it open can read on.

        Raises:
            HostLost: a host does not answer.
        """
        (self.folder / file).unlink(missing_ok=True)
        for host in self._present.hosts:
            asked(host, host.remove, file)

    def fetch(self, worker: int, file: str) -> Path:
        """Return the file that a worker wrote into the folder of its host.

        Raises:
            HostLost: the host does not answer.
        """
        host = self._hosts.of_worker[worker]
        with telling_of_temporary_files():
            return asked(host, host.fetch, file)

    def close(self) -> None:
        """Remove the folder on this host."""
        self._own.cleanup()


def telling_of_temporary_files() -> AbstractContextManager[None]:
    """Report storage errors of the session's own files; an observer's files have their own."""
    return reporting_disk_errors(Path(tempfile.gettempdir()))
