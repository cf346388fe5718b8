"""Who can reach a session: this machine alone, and only with its token."""

import os
import secrets
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession
from drlpp.runtime.ipc.store import join_store, open_store

LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def listening_addresses(process: int) -> list[str]:
    """Local addresses, as Linux writes them, on which a process accepts TCP over IPv4 and IPv6."""
    inodes = set()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        # The folder of descriptors is one itself, and gone by now.
        with suppress(FileNotFoundError):
            target = os.readlink(descriptor)
            if target.startswith("socket:["):
                inodes.add(target[len("socket:[") : -1])
    found = []
    for table in ("tcp", "tcp6"):
        path = Path(f"/proc/{process}/net/{table}")
        for line in path.read_text().splitlines()[1:] if path.exists() else []:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.append(fields[1].partition(":")[0])
    return found


def test_a_session_listens_on_this_machine_alone_and_tells_no_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokens = []
    draw = secrets.token_hex

    def noted(bytes_: int) -> str:
        tokens.append(draw(bytes_))
        return tokens[-1]

    monkeypatch.setattr(secrets, "token_hex", noted)
    captured = capture(ModelReference.named("tests.support.models.small:perceptron"))
    # Tests before this one may have left what listens.
    before = Counter(listening_addresses(os.getpid()))
    with ClusterSession(captured, workers=2) as session:
        half = len(captured.graph) // 2
        session.measure(
            Placement.from_assignment([0] * half + [1] * (len(captured.graph) - half), (0, 1)), 4
        )
        addresses = [listening_addresses(process) for process in session.process_ids]
        assert all(addresses), "Gloo listens in every worker"
        new = Counter(listening_addresses(os.getpid())) - before
        for found in [new, *addresses]:
            assert set(found) <= LOOPBACK
        assert new, "the store listens in the controller"
        commands = [Path(f"/proc/{p}/cmdline").read_bytes() for p in session.process_ids]
        environments = [Path(f"/proc/{p}/environ").read_bytes() for p in session.process_ids]
    assert tokens
    told = b"".join(commands + environments)
    assert not [token for token in tokens if token.encode() in told]


def test_keys_are_a_sessions_own() -> None:
    _, at = open_store("127.0.0.1")
    one, other = join_store(at), join_store(replace(at, token="another"))
    one.set("key", "value")
    assert one.get("key") == b"value"
    assert not other.check(["key"])
