"""Whether a server of gRPC, such as Ray's, takes this program, encrypted or not."""

from __future__ import annotations

import os
import socket
import ssl

from drlpp.errors import InvalidInput

_CERTIFICATE, _KEY, _AUTHORITY = (
    "RAY_TLS_SERVER_CERT",
    "RAY_TLS_SERVER_KEY",
    "RAY_TLS_CA_CERT",
)
_PROTOCOL = "h2"
"""HTTP/2, without which a server of gRPC ends a connection."""


def greets(host: str, port: int, seconds: float) -> bool:
    """Return whether a server speaks with this program, as Ray's variables say: by TLS or not.

    A server of gRPC speaks first. If it expects the other way, it waits for ever; if one side does
    not take the other's certificate, the connection ends. gRPC itself would try again and again.

    Args:
        host: of the server.
        port: of the server.
        seconds: to wait for its first word.

    Raises:
        InvalidInput: ``RAY_USE_TLS`` is set, and what belongs to it is not, or cannot be read.
    """
    context = _tls()
    try:
        with socket.create_connection((host, port), timeout=seconds) as line:
            if context is None:
                return bool(line.recv(1))
            with context.wrap_socket(line, server_hostname=host) as encrypted:
                return bool(encrypted.recv(1))
    except OSError:
        return False


def _tls() -> ssl.SSLContext | None:
    """Return how to encrypt; None for not at all."""
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return None
    for name in (_CERTIFICATE, _KEY, _AUTHORITY):
        if not os.environ.get(name):
            raise InvalidInput(f"RAY_USE_TLS is set, but {name} is not; it is the path of a file")
    try:
        context = ssl.create_default_context(cafile=os.environ[_AUTHORITY])
        context.load_cert_chain(os.environ[_CERTIFICATE], os.environ[_KEY])
    except OSError as error:
        raise InvalidInput(
            f"{_CERTIFICATE}, {_KEY} or {_AUTHORITY} names no file of its kind: {error}"
        ) from None
    context.set_alpn_protocols([_PROTOCOL])
    return context
