"""Who may join a launch, and what sessions of a launch share."""

import os
import struct
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed as dist

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.errors import HostLost, InvalidInput
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession, shutdown_multihost
from drlpp.runtime.hosts import launch as launch_module
from drlpp.runtime.hosts import launch_store
from drlpp.runtime.hosts.launch import (
    Controller,
    default_num_workers,
    init_multihost,
    restarted,
    serve_host,
)
from drlpp.runtime.hosts.launched_process import Launch
from drlpp.runtime.hosts.session_hosts import hosts_for
from drlpp.runtime.ipc.time_limits import TimeLimits
from tests.support.programs.launched import connect, launched


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:forked"))


def test_strangers_are_turned_away(captured: CapturedModel) -> None:
    with launched([0, 0]) as controller:
        talker, liar = connect(controller), connect(controller)
        talker.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
        # A pickled object instead of the answer to the challenge is never unpickled.
        liar.sendall(struct.pack("!i", 30) + b"cos\nsystem\n(S'exit'\ntR." + b" " * 7)
        with ClusterSession(captured) as session:
            placement = Placement.from_assignment([0] * len(captured.graph), (0, 0))
            assert isinstance(session.measure(placement, 4), Measurement)
        for stranger in (talker, liar):
            stranger.close()


def test_stranger_that_says_nothing_does_not_hold_up_the_others(
    captured: CapturedModel,
) -> None:
    limits = TimeLimits(handshake_seconds=1, gathering_seconds=2)
    with launched([0], limits=limits) as controller, connect(controller):
        controller.launch = replace(controller.launch, size=2)
        with pytest.raises(HostLost, match=r"ranks \[1\] of 2 have not reached"):
            ClusterSession(captured)


def test_host_agent_with_another_token_is_told(
    captured: CapturedModel, capfd: pytest.CaptureFixture[str]
) -> None:
    limits = TimeLimits(gathering_seconds=2)
    with (
        launched([0, 1], host_agent_token=b"some other secret of length", limits=limits),
        pytest.raises(
            HostLost, match=r"ranks \[1\] .* from 127\.0\.0\.1 was turned away, .* DRLPP_TOKEN"
        ),
    ):
        ClusterSession(captured)
    assert "has another DRLPP_TOKEN" in capfd.readouterr().err


def test_hosts_with_other_versions_are_refused(
    captured: CapturedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = iter(["drlpp 9.9, torch 1.0, Python 3.9"])
    ours = launch_module.versions()
    monkeypatch.setattr(launch_module, "versions", lambda: next(told, ours))
    with (
        launched([0, 1]),
        pytest.raises(InvalidInput, match=r"at 127\.0\.0\.1 has drlpp 9\.9.*and this one drlpp 0"),
    ):
        ClusterSession(captured)


def test_a_session_that_is_closed_again_leaves_the_next_alone(captured: CapturedModel) -> None:
    placement = Placement.from_assignment([0] * len(captured.graph), (0, 0))
    with launched([0, 1]):
        with ClusterSession(captured) as first:
            first.close()
            second = ClusterSession(captured)
        with second:
            assert isinstance(second.measure(placement, 4), Measurement)
            with pytest.raises(InvalidInput, match="of another session"):
                ClusterSession(captured)


def test_a_launch_has_one_session_at_a_time(captured: CapturedModel) -> None:
    placement = Placement.from_assignment([0] * len(captured.graph), (0, 0))
    with launched([0, 1]):
        with ClusterSession(captured) as first:
            with pytest.raises(InvalidInput, match="workers of another session"):
                ClusterSession(captured)
            assert isinstance(first.measure(placement, 4), Measurement)
        with ClusterSession(captured) as second:
            assert isinstance(second.measure(placement, 4), Measurement)


def test_more_workers_than_processes_are_refused(captured: CapturedModel) -> None:
    with launched([0, 0]):
        assert default_num_workers() == 2
        with pytest.raises(InvalidInput, match="torchrun has started 2 processes"):
            ClusterSession(captured, workers=3)


def test_launch_needs_a_token_and_to_be_joined(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert Launch.from_environment() is None
    init_multihost()
    assert default_num_workers() == 4
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GROUP_RANK", "0")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(InvalidInput, match="DRLPP_TOKEN is not set"):
        init_multihost()
    monkeypatch.setenv("DRLPP_TOKEN", "short")
    with pytest.raises(InvalidInput, match="DRLPP_TOKEN is too short"):
        init_multihost()
    # What is read from /dev/urandom is no text.
    monkeypatch.setenv("DRLPP_TOKEN", os.fsdecode(b"\xff\xfe" * 10))
    assert (found := Launch.from_environment()) is not None
    assert found.token == b"\xff\xfe" * 10
    monkeypatch.setenv("DRLPP_TOKEN", "0123456789abcdef")
    with pytest.raises(InvalidInput, match="call drlpp"):
        default_num_workers()
    # Each process would train alone, on its own host.
    with pytest.raises(InvalidInput, match="call drlpp"):
        hosts_for(2, tmp_path)


@pytest.mark.parametrize("exit_code", [None, 3])
def test_the_others_learn_the_exit_code_of_a_program(
    monkeypatch: pytest.MonkeyPatch, exit_code: int | None
) -> None:
    store = dist.HashStore()
    first = Launch(rank=0, size=2, node=0, controller="127.0.0.1", token=b"a secret" * 2)
    codes: list[int] = []
    host_agent = threading.Thread(
        target=lambda: codes.append(serve_host(replace(first, rank=1), store))
    )
    monkeypatch.delattr(sys, "last_value", raising=False)
    monkeypatch.setattr(launch_module, "_controller", Controller(first, store))
    host_agent.start()
    try:
        controller = launch_module.controller()
        assert controller is not None
        controller.host_agents()
    finally:
        shutdown_multihost(exit_code)
        host_agent.join(30)
    assert codes == [exit_code or 0]


@pytest.mark.parametrize("exit_code", [0, 3])
def test_the_others_end_with_a_program_that_had_no_session(exit_code: int) -> None:
    """Also if they come when it has ended, and nobody starts it anew."""
    store = dist.HashStore()
    brief = TimeLimits(restart_seconds=0.1)
    first = Launch(0, 2, 0, controller="127.0.0.1", token=b"a secret" * 2, limits=brief)
    Controller(first, store).close(exit_code)
    assert serve_host(replace(first, rank=1), store) == exit_code


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_program_knows_that_it_was_started_anew(
    monkeypatch: pytest.MonkeyPatch, attempt: int
) -> None:
    store = dist.HashStore()
    launch = Launch(rank=0, size=1, node=0, controller="127.0.0.1", token=b"a secret" * 2)
    for _ in range(attempt):
        controller = Controller(launch, store)
        monkeypatch.setattr(launch_module, "_controller", controller)
        assert restarted() == (controller.attempt > 1)
        controller.close()
    assert controller.attempt == attempt


def test_a_controller_out_of_reach_is_not_asked_for_ever() -> None:
    store, answer = dist.HashStore(), threading.Event()

    class CutOff(dist.Store):
        def get(self, key: str) -> bytes:
            answer.wait(30)
            return store.get(key)

    brief = TimeLimits(exit_code_seconds=0.1)
    assert launch_store.exit_code_of_controller(CutOff(), brief) is None
    answer.set()
    store.set("drlpp/controller", "1234")
    assert launch_store.exit_code_of_controller(CutOff(), TimeLimits()) is None, "it still runs"
    store.set("drlpp/controller", "ended 3")
    assert launch_store.exit_code_of_controller(CutOff(), TimeLimits()) == 3
