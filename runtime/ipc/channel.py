"""The way that messages take between the controller and a worker: a pipe, and files."""

from __future__ import annotations

import pickle
import uuid
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from drlpp.errors import StorageFailure

_LONGEST_BYTES = 2048


class Channel:
    """One end of a pipe; long messages are files of a folder, which both ends name."""

    def __init__(self, connection: Connection, folder: str) -> None:
        self.connection = connection
        self.folder = folder

    def send(self, message: object) -> None:
        """Send ``message`` without waiting for the other side.

        Raises:
            StorageFailure: a long one cannot be written.
        """
        data = pickle.dumps(message)
        if len(data) > _LONGEST_BYTES:
            path = Path(self.folder) / f"message-{uuid.uuid4().hex}"
            try:
                path.write_bytes(data)
            except OSError as error:
                # Also where somebody has removed the folder.
                path.unlink(missing_ok=True)
                raise StorageFailure(f"{path}: cannot be written ({error.strerror})") from None
            data = pickle.dumps(path)
        self.connection.send_bytes(data)

    def receive(self) -> Any:
        """Wait for the next message.

        Raises:
            EOFError: the other side has gone.
        """
        message = pickle.loads(self.connection.recv_bytes())
        if isinstance(message, Path):
            try:
                data = message.read_bytes()
            finally:
                # Also of what does not fit into memory, which nobody would read again.
                message.unlink(missing_ok=True)
            message = pickle.loads(data)
        return message

    def close(self) -> None:
        """Close this end."""
        self.connection.close()
