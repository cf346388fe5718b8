"""Who can reach a session: this machine alone, and only with its token."""

import os
import secrets
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from drlpp.capturing.capture import capture
from drlpp.errors import InvalidInput
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import ClusterSession, TimeLimits
from drlpp.runtime.ipc.channel import join_store, open_store
from drlpp.runtime.ipc.time_limits import time_limits_of
from tests.endurance.faults.strangers import listening_ports
from tests.support.training.pipelines import in_a_row


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
    before = listening_ports([os.getpid()])
    with ClusterSession(captured, workers=2) as session:
        session.measure(in_a_row(captured.graph, 0, 1), 4)
        of_workers = [listening_ports([process]) for process in session.process_ids]
        assert all(of_workers), "Gloo listens in every worker"
        new = listening_ports([os.getpid()]).items() - before.items()
        assert new, "the store listens in the controller"
        found = {address for _, address in new}.union(*(ports.values() for ports in of_workers))
        assert found <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
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


@pytest.mark.parametrize("field", [one.name for one in fields(TimeLimits)])
def test_what_is_no_time_is_refused(field: str) -> None:
    refused: list[Any] = [0, -1.0, float("nan"), float("inf"), "5"]
    for seconds in [*refused, *([None] if field != "answer_seconds" else [])]:
        with pytest.raises(InvalidInput, match=rf"was given \({field}\)"):
            TimeLimits(**{field: seconds})


def test_a_session_has_its_own_limits_or_the_defaults() -> None:
    own = TimeLimits(gathering_seconds=7)
    assert time_limits_of() == TimeLimits()
    assert time_limits_of(own, 5) == replace(own, answer_seconds=5)
    assert TimeLimits(host_silence_seconds=30.0).lease_seconds > 30
