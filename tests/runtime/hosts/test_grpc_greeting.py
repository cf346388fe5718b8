"""Whether a server speaks with this program: as it expects it, encrypted or not."""

import os
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from drlpp.runtime.hosts.on_ray.grpc_greeting import greets
from tests.support.programs.certificates import certified

HOST = "127.0.0.1"


@contextmanager
def server(credentials: grpc.ServerCredentials | None = None) -> Iterator[int]:
    """The port of a server of gRPC."""
    served = grpc.server(futures.ThreadPoolExecutor(1))
    port = (
        served.add_insecure_port("0.0.0.0:0")
        if credentials is None
        else served.add_secure_port("0.0.0.0:0", credentials)
    )
    served.start()
    try:
        yield port
    finally:
        served.stop(None).wait()


def credentials_of(variables: dict[str, str]) -> grpc.ServerCredentials:
    """As Ray makes them."""
    key, certificate, authority = (
        Path(variables[f"RAY_TLS_{name}"]).read_bytes()
        for name in ("SERVER_KEY", "SERVER_CERT", "CA_CERT")
    )
    return grpc.ssl_server_credentials([(key, certificate)], authority, True)


def use(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name in [name for name in os.environ if name.startswith(("RAY_USE_TLS", "RAY_TLS"))]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_a_server_greets_who_speaks_as_it_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ours = certified(tmp_path, [], "ours")
    others = certified(tmp_path, [], "others")
    mixed = ours | {name: others[name] for name in ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY")}
    with server() as plain, server(credentials_of(ours)) as encrypted:
        for variables, port, expected in (
            ({}, plain, True),
            ({"RAY_USE_TLS": "0"}, plain, True),
            (ours, encrypted, True),
            (ours | {"RAY_USE_TLS": "true"}, encrypted, True),
            (ours, plain, False),
            ({}, encrypted, False),
            (others, encrypted, False),
            (mixed, encrypted, False),
        ):
            use(monkeypatch, variables)
            assert greets(HOST, port, 2) is expected, (variables, port == plain)
        use(monkeypatch, ours)
        # The certificate is for 127.0.0.1 and localhost.
        assert greets("localhost", encrypted, 2)
        assert not greets("127.0.0.2", encrypted, 2)
    use(monkeypatch, {})
    assert not greets(HOST, plain, 2)


def test_variables_that_are_missing_or_wrong_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ours = certified(tmp_path, [])
    for name in ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT"):
        use(monkeypatch, {one: value for one, value in ours.items() if one != name})
        with pytest.raises(ValueError, match=f"RAY_USE_TLS is set, but {name} is not"):
            greets(HOST, 1, 1)
        for wrong in (str(tmp_path / "nothing"), __file__):
            use(monkeypatch, ours | {name: wrong})
            with pytest.raises(ValueError, match="names no file of its kind"):
                greets(HOST, 1, 1)
