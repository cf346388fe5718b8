"""Who may use a Ray cluster, and what those are told who may not."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.programs.certificates import certified
from tests.support.programs.ray_clusters import RayCluster, ray_cluster

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
    with ray_cluster((1, 1), encrypted=True) as cluster:
        client = cluster.client_address
        for address in (cluster.address, client):
            code, out, err = run(cluster, {}, address)
            assert (code, out) == (0, "2\n"), err
        others = certified(tmp_path, cluster.addresses)
        for address, other in (
            (cluster.address, {"RAY_USE_TLS": "0"}),
            (cluster.address, others),
            (client, {"RAY_USE_TLS": "0"}),
        ):
            code, out, err = run(cluster, other, address)
            assert (code, out) == (2, ""), err
            (line,) = [line for line in err.splitlines() if line.startswith("program.py: error")]
            assert address in line
            assert "RAY_TLS_CA_CERT" in line
