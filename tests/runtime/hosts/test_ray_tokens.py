"""Who may use a Ray cluster, and what those are told who may not."""

import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.emulated_cluster.job import free_port
from drlpp.runtime.hosts import session_hosts
from tests.support.programs.certificates import certified
from tests.support.programs.ray_clusters import RayCluster, client_address, ray_cluster

TOKEN = "0123456789abcdef0123456789abcdef"
PROGRAM = """
import sys
from drlpp.cli.command_line import run_program
from tests.support.programs.ray_clusters import PATIENT
def program():
    from drlpp.runtime import ClusterSession
    model = "tests.support.models.small:forked"
    with ClusterSession(model, cluster=sys.argv[1], time_limits=PATIENT) as session:
        session.worker_group.prepare()
        print(session.accelerators)
run_program(program, "program.py")
"""


def run(
    cluster: RayCluster, environment: Mapping[str, str], address: str = ""
) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, address or cluster.address],
        env={**cluster.environment, **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_only_programs_with_the_token_get_in() -> None:
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    with ray_cluster((1,), environment=secret) as cluster:
        code, out, err = run(cluster, {})
        assert (code, out) == (0, "1\n"), err
        for other in (
            {"RAY_AUTH_TOKEN": TOKEN[::-1]},
            {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": ""},
        ):
            code, out, err = run(cluster, other)
            assert (code, out) == (2, ""), err
            (line,) = [line for line in err.splitlines() if line.startswith("program.py: error")]
            assert cluster.address in line
            assert "RAY_AUTH_TOKEN" in line
            assert TOKEN not in err


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_encrypted_cluster_takes_programs_with_its_certificate(tmp_path: Path) -> None:
    """And says within seconds that it takes no others, which Ray would let try for minutes."""
    port = free_port()
    options = {0: ["--ray-client-server-port", str(port)]}
    with ray_cluster((1, 1), options=options, encrypted=True) as cluster:
        client = client_address(cluster, port)
        for address in (cluster.address, client):
            code, out, err = run(cluster, {}, address)
            assert (code, out) == (0, "2\n"), err
        others = certified(tmp_path, cluster.addresses)
        mixed = {name: others[name] for name in ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY")}
        for address, other in (
            (cluster.address, {"RAY_USE_TLS": "0"}),
            (cluster.address, others),
            (cluster.address, mixed),
            (client, {"RAY_USE_TLS": "0"}),
        ):
            code, out, err = run(cluster, other, address)
            assert (code, out) == (2, ""), err
            (line,) = [line for line in err.splitlines() if line.startswith("program.py: error")]
            assert address in line
            assert "RAY_TLS_CA_CERT" in line


def test_an_address_where_nobody_speaks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from drlpp.runtime import ClusterSession
    from drlpp.runtime.hosts.on_ray import connection as joining

    monkeypatch.setattr(joining, "_HEAD_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(
            ValueError, match=rf"the Ray cluster {address} cannot be reached.*no word"
        ):
            ClusterSession("tests.support.models.small:forked", 1, cluster=address)


def test_a_cluster_without_ray_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"not installed: pip install 'drlpp\[ray\]'"):
        session_hosts.default_num_workers(cluster="auto")


def test_a_program_of_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from drlpp.runtime import ClusterSession

    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with pytest.raises(ValueError, match=r"started by torchrun, .* name a Ray cluster"):
        ClusterSession("tests.support.models.small:forked", 1)
