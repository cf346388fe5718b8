"""The channel between the controller and a worker: short messages by pipe, long ones by file.

A pipe holds only so much. If the other side is frozen, sending more than that would freeze the
sender too, and a half-sent message would freeze the receiver; so what is long travels as the
name of a file.
"""

from __future__ import annotations

import pickle
import uuid
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from drlpp.errors import StorageFailure

_LONGEST_BYTES = 2048


class Channel:
    """One end of a pipe.

    Args:
        connection: the end of the pipe.
        folder: for long messages; both ends name the same one.
    """

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
