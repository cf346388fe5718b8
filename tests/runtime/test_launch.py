"""Sessions whose workers other processes keep, as under torchrun."""

import multiprocessing
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from torch import Tensor

from drlpp.capturing import CapturedModel, capture
from drlpp.cluster import Link
from drlpp.errors import HostLost, InvalidInput, WorkerLost
from drlpp.measurement import FailedMeasurement, Measurement
from drlpp.optimizer_spec import OptimizerSpec
from drlpp.placement import Placement
from drlpp.runtime import ClusterSession, Minibatches, RunOptions, run_reference
from drlpp.runtime import keeper as keeper_module
from drlpp.runtime import launch as launch_module
from drlpp.runtime import remote_host as remote_host_module
from drlpp.runtime.checkpoint_file import write_checkpoint
from drlpp.runtime.commands import Failed, RunResult
from drlpp.runtime.devices import DeviceFacts
from drlpp.runtime.emulation import cores_for
from drlpp.runtime.hosts import Answered
from drlpp.runtime.keeper_messages import Clock, Hello, Leave, Reply, place_of
from drlpp.runtime.launch import Launch, join_launch, usual_workers
from drlpp.runtime.local_host import LocalHost
from drlpp.runtime.remote_host import RemoteHost
from drlpp.runtime.session_cluster import ends_to_measure, session_cluster
from drlpp.runtime.session_hosts import Hosts
from drlpp.task import ModelReference
from drlpp.training_options import Method
from tests.runtime.forked import largest_difference, order, placements, samples
from tests.runtime.launched import connect, launched

SGD = OptimizerSpec(name="sgd", options={"lr": 0.05, "momentum": 0.9})
PIPEOPTIM = Method(policy="pipeoptim")


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference(name="tests.models:forked"))


@pytest.fixture(scope="module")
def session(captured: CapturedModel) -> Iterator[ClusterSession]:
    """Two workers on the controller's host, two on another that shares no folder with it."""
    with launched([0, 0, 1, 1]), ClusterSession(captured) as session:
        yield session


def _train(session: ClusterSession, placement: Placement) -> dict[str, Tensor]:
    session.use_samples(*samples())
    deployment = session.deploy(placement, PIPEOPTIM, SGD)
    session.run(deployment, 12, RunOptions(order=order(12)))
    return session.collect(deployment)[0]


@pytest.mark.parametrize("shape", ["straight", "replicated", "branching"])
def test_workers_of_several_hosts_train_to_the_references_weights(
    captured: CapturedModel, session: ClusterSession, shape: str
) -> None:
    placement = placements(captured)[shape]
    assert session.host_of[0] == session.host_of[1] != session.host_of[2] == session.host_of[3]
    weights = _train(session, placement)
    inputs, targets = samples()
    expected = run_reference(
        captured,
        placement,
        Minibatches(inputs, targets, order(12)),
        12,
        method=PIPEOPTIM,
        optimizer=SGD,
    )
    assert largest_difference(weights, expected.state) < 1e-9


def test_checkpoints_reach_other_hosts(
    captured: CapturedModel, session: ClusterSession, tmp_path: Path
) -> None:
    placement = placements(captured)["straight"]
    whole = _train(session, placement)
    deployment = session.deploy(placement, PIPEOPTIM, SGD)
    path = tmp_path / "checkpoint.safetensors"
    options = RunOptions(order=order(12))
    session.run(
        deployment,
        12,
        options,
        cuts=[5],
        on_cut=lambda cut, results: write_checkpoint(path, session.checkpoint(deployment)),
    )
    deployment = session.deploy(placement, PIPEOPTIM, SGD, path, in_flight=True)
    session.run(deployment, 12, options, start=5)
    resumed = session.collect(deployment)[0]
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())


def test_worker_of_another_host_is_replaced(
    captured: CapturedModel, session: ClusterSession
) -> None:
    placement = placements(captured)["straight"]
    session.use_samples(captured.task.inputs, captured.task.targets)
    assert isinstance(session.measure(placement, 4), Measurement)
    before = session.process_ids
    # These keepers are threads, so their workers are processes of this machine.
    os.kill(before[3], signal.SIGKILL)
    outcomes = [session.measure(placement, 4) for _ in range(2)]
    assert isinstance(outcomes[1], Measurement)
    if isinstance(outcomes[0], FailedMeasurement):
        assert "worker 3 was killed by SIGKILL" in outcomes[0].reason
    assert not set(before) & set(session.process_ids)


def test_profile_tells_hosts_and_links_apart(
    captured: CapturedModel, session: ClusterSession
) -> None:
    session.use_samples(captured.task.inputs, captured.task.targets)
    _, cluster = session.profile(repeats=2)
    assert cluster.accelerators == 4
    assert cluster.host_of == (0, 0, 1, 1)
    assert cluster.between_hosts is not None


def test_host_that_is_gone_ends_the_session_with_a_reason(captured: CapturedModel) -> None:
    placement = placements(captured)["straight"]
    with launched([0, 1, 1, 2]) as controller, ClusterSession(captured) as session:
        session.measure(placement, 4)
        _, connection = controller.keepers()[2]
        with socket.socket(fileno=os.dup(connection.fileno())) as peer:
            peer.shutdown(socket.SHUT_RDWR)
        for _ in range(2):
            with pytest.raises(HostLost, match=r"rank 3\) cannot be reached"):
                session.measure(placement, 4)
        workers = session.process_ids
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)


def test_silent_host_is_lost_in_time(
    captured: CapturedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_host_module, "SILENCE_SECONDS", 1)
    carry_out = keeper_module.Keeper._carry_out
    silent = False
    monkeypatch.setattr(
        keeper_module.Keeper, "_carry_out", lambda *args: None if silent else carry_out(*args)
    )
    with launched([0, 1]), ClusterSession(captured) as session:
        session.measure(Placement.from_assignment([0] * len(captured.graph), (0, 0)), 4)
        silent = True
        os.kill(session.process_ids[1], signal.SIGKILL)
        placement = Placement.from_assignment([0] * len(captured.graph), (0, 0))
        # That the worker has died may be noticed before that its keeper is silent.
        with suppress(WorkerLost, HostLost):
            session.deploy(placement)
        with pytest.raises(HostLost, match="no answer within 1 s"):
            session.deploy(placement)
        silent = False


def test_times_of_another_clock_become_ours(tmp_path: Path) -> None:
    ahead = 1000.0
    ours, theirs = multiprocessing.Pipe()
    hello = Hello(1, 1, "far", "10.0.0.2", "another machine", (0,))
    host = RemoteHost(hello, ours, "far", tmp_path, shares_clock=False)

    def keep() -> None:
        while True:
            number, request = theirs.recv()
            if not isinstance(request, Clock):
                return
            # A reply that comes late is not taken for this one.
            theirs.send(Reply(number - 1, seconds=5.0))
            theirs.send(Reply(number, seconds=time.perf_counter() + ahead))

    keeper = threading.Thread(target=keep)
    keeper.start()
    begin = time.perf_counter()
    theirs.send(
        Answered(
            1,
            RunResult(
                times=[(begin + ahead, begin + ahead + 2)],
                losses={},
                scores={},
                peak_memory_bytes=0,
                bytes_sent=0,
                predictions=[(begin + ahead + 1, begin + ahead + 2)],
            ),
        )
    )
    (event,) = host.events([ours])
    ours.send((0, None))
    keeper.join(10)
    assert isinstance(event, Answered)
    assert isinstance(event.answer, RunResult)
    assert event.answer.times == [pytest.approx((begin, begin + 2), abs=0.5)]
    assert event.answer.predictions == [pytest.approx((begin + 1, begin + 2), abs=0.5)]


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
    captured: CapturedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_module, "_HANDSHAKE_SECONDS", 1)
    monkeypatch.setattr(launch_module, "_GATHERING_SECONDS", 2)
    with launched([0]) as controller, connect(controller):
        controller.launch = replace(controller.launch, size=2)
        with pytest.raises(HostLost, match=r"ranks \[1\] of 2 have not reached"):
            ClusterSession(captured)


def test_keeper_with_another_token_is_told(
    captured: CapturedModel, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch_module, "_GATHERING_SECONDS", 2)
    with (
        launched([0, 1], keeper_token=b"some other secret of length"),
        pytest.raises(HostLost, match=r"ranks \[1\]"),
    ):
        ClusterSession(captured)
    assert "has another DRLPP_TOKEN" in capfd.readouterr().err


def test_a_launch_has_one_session_at_a_time(captured: CapturedModel) -> None:
    placement = Placement.from_assignment([0] * len(captured.graph), (0, 0))
    with launched([0, 1]):
        with ClusterSession(captured) as first:
            with pytest.raises(InvalidInput, match="workers of another session"):
                ClusterSession(captured)
            assert isinstance(first.measure(placement, 4), Measurement)
        with ClusterSession(captured) as second:
            assert isinstance(second.measure(placement, 4), Measurement)


def test_a_large_answer_and_a_file_do_not_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sides send more than the network holds between them."""
    ours, theirs = (Connection(end.detach()) for end in socket.socketpair())
    hello = Hello(1, 1, "far", "10.0.0.2", "another machine", (0,))
    keeper = keeper_module.Keeper(hello, theirs)
    serving = threading.Thread(target=keeper.serve)
    serving.start()
    assert ours.recv() == hello
    host = RemoteHost(hello, ours, "far", tmp_path, shares_clock=True)
    folder = Path(host.open(None))
    path = tmp_path / "chunk"
    path.write_bytes(os.urandom(2**24))
    long = Answered(1, Failed("ModelError", "x" * 2**24))
    answers = [[long]]
    monkeypatch.setattr(
        keeper_module.LocalHost, "events", lambda *_: answers.pop() if answers else []
    )
    host.publish(path)
    assert (folder / "chunk").read_bytes() == path.read_bytes()
    assert host.events([]) == [long]
    assert (tmp_path / host.fetch("chunk").name).read_bytes() == path.read_bytes()
    ours.send_bytes(pickle.dumps((0, Leave(3))))
    serving.join(30)
    assert not serving.is_alive()
    assert not folder.exists()


def test_names_of_files_stay_in_the_folder(tmp_path: Path) -> None:
    assert place_of(tmp_path, "model") == tmp_path / "model"
    for name in ("../model", "..", "/etc/passwd", "a/b", ""):
        with pytest.raises(OSError, match="not the name of a file"):
            place_of(tmp_path, name)


def test_more_workers_than_processes_are_refused(captured: CapturedModel) -> None:
    with launched([0, 0]):
        assert usual_workers() == 2
        with pytest.raises(InvalidInput, match="torchrun has started 2 processes"):
            ClusterSession(captured, workers=3)


def test_launch_needs_a_token_and_to_be_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Launch.from_environment() is None
    join_launch()
    assert usual_workers() == 4
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GROUP_RANK", "0")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(InvalidInput, match="DRLPP_TOKEN is not set"):
        join_launch()
    monkeypatch.setenv("DRLPP_TOKEN", "short")
    with pytest.raises(InvalidInput, match="DRLPP_TOKEN is too short"):
        join_launch()
    monkeypatch.setenv("DRLPP_TOKEN", "0123456789abcdef")
    with pytest.raises(InvalidInput, match="call drlpp"):
        usual_workers()


def test_emulated_accelerators_share_the_cores_of_their_machine() -> None:
    machines = [("one", (0, 1)), ("one", (0, 1)), ("one", (0, 1)), ("other", (0,))]
    assert cores_for((0.5, 0.5, 0.4, 0.5), machines) == [1, 0, 1, 0]
    assert cores_for((1.0,) * 4, machines) == [None] * 4


def test_hosts_become_a_cluster() -> None:
    machines = (("a", (0, 1)),) * 3 + (("b", (0, 1, 2, 3)),) + (("c", (0,)),)
    names = ["x", "x", "x", "y", "z"]
    hosts = Hosts(tuple(_Named((w,), name) for w, name in enumerate(names)), machines)
    assert ends_to_measure(hosts) == [(0, 1), (0, 3), (0, 4)]
    inside, quick, slow = (Link(bandwidth_bytes_per_second=b) for b in (1e10, 1e9, 1e8))
    links = {(0, 1): inside, (0, 3): quick, (0, 4): slow}
    cluster = session_cluster(hosts, [DeviceFacts()] * 5, (1.0,) * 5, links)
    assert cluster.host_of == (0, 0, 0, 1, 2)
    assert cluster.link(0, 2) == inside
    assert cluster.link(1, 3) == quick
    assert cluster.link(3, 4) == cluster.link(0, 4) == slow
    assert cluster.cores_of == (2, 2, 2, None, None), "three workers share two cores"
    emulated = session_cluster(hosts, [DeviceFacts()] * 5, (0.5, 0.25, 0.5, 0.5, 0.5), links)
    assert emulated.speeds == (0.5, 0.25, 0.5, 0.5, 0.5)
    assert emulated.link(0, 4) == slow
    gpus = [DeviceFacts("cuda", "GPU", name, 80) for name in ("a", "b", "b", "c", "d")]
    on_gpus = session_cluster(hosts, gpus, (1.0,) * 5, links)
    assert on_gpus.devices == ("cuda",) * 5
    assert on_gpus.cores_of == (2, 2, 2, None, None), "three workers share two GPUs"
    assert on_gpus.memory_bytes == (40, 40, 40, 80, 80)
    alone = Hosts((_Named((0,), "x"),), (("a", (0,)),))
    assert ends_to_measure(alone) == []
    assert session_cluster(alone, [DeviceFacts()], (1.0,), {}).accelerators == 1


class _Named(LocalHost):
    def __init__(self, workers: tuple[int, ...], name: str) -> None:
        super().__init__(workers, Path("unused"), name)


def _environment() -> dict[str, str]:
    path = os.pathsep.join([*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(Path.cwd())])
    return {**os.environ, "DRLPP_TOKEN": "0123456789abcdef", "PYTHONPATH": path}


def test_torchrun_starts_a_session(tmp_path: Path) -> None:
    """The whole of it: every process runs this program, the first one prints what it measured."""
    program = tmp_path / "program.py"
    program.write_text(
        "from drlpp.command_line import run_program\n"
        "def measure():\n"
        "    import torch\n"
        "    from drlpp.runtime import ClusterSession, RunOptions\n"
        "    from drlpp.placement import Placement\n"
        "    with ClusterSession('tests.models:forked') as session:\n"
        "        operators = len(session.graph)\n"
        "        stages = [min(3 * i // operators, 2) for i in range(operators)]\n"
        "        placement = Placement.from_assignment(stages, (0, 1, 2))\n"
        "        print(session.accelerators, type(session.measure(placement, 4)).__name__)\n"
        "        order = torch.zeros(4, 8, dtype=torch.long)\n"
        "        session.run(session.deploy(placement), 4, RunOptions(order=order))\n"
        "run_program(measure, 'program.py')\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    result = subprocess.run(
        [*command, "--nproc-per-node", "3", str(program)],
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["3", "Measurement"]


def test_other_processes_of_torchrun_end_with_the_first(tmp_path: Path) -> None:
    """Also where it had no session, or has failed."""
    program = tmp_path / "program.py"
    program.write_text(
        "from drlpp.command_line import run_program\n"
        "from drlpp.errors import InvalidInput\n"
        "def program():\n"
        "    import sys\n"
        "    if len(sys.argv) > 1:\n"
        "        raise InvalidInput('no such thing')\n"
        "run_program(program, 'program.py')\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    for arguments in ([], ["fail"]):
        result = subprocess.run(
            [*command, "--nproc-per-node", "2", str(program), *arguments],
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert (result.returncode == 0) == (not arguments), result.stderr
        assert ("program.py: error: no such thing" in result.stderr) == bool(arguments)


def test_a_program_that_torchrun_starts_anew_has_its_workers_again(tmp_path: Path) -> None:
    """Two launchers, as on two hosts, so that the failure of one has to reach the other."""
    program = tmp_path / "program.py"
    program.write_text(
        "from drlpp.command_line import run_program\n"
        "from drlpp.errors import RunFailure\n"
        "def program():\n"
        "    from drlpp.runtime import ClusterSession, restarted\n"
        "    from drlpp.placement import Placement\n"
        "    with ClusterSession('tests.models:perceptron') as session:\n"
        "        if not restarted():\n"
        "            raise RunFailure('the first attempt fails')\n"
        "        placement = Placement.from_assignment([0] * len(session.graph), (0, 0))\n"
        "        print(type(session.measure(placement, 4)).__name__)\n"
        "run_program(program, 'program.py')\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
    command += ["--nproc-per-node", "1", "--max-restarts", "1", "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", endpoint, "--local-addr", "127.0.0.1", str(program)]
    launchers = [
        subprocess.Popen(
            command,
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        outputs = [launcher.communicate(timeout=110) for launcher in launchers]
    finally:
        for launcher in launchers:
            launcher.kill()
    assert [launcher.returncode for launcher in launchers] == [0, 0], outputs
    assert "".join(stdout for stdout, _ in outputs).split() == ["Measurement"]
    assert any("the first attempt fails" in stderr for _, stderr in outputs)
