"""Who may use a Ray cluster with a token and certificates, and what those are told who may not."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs.certificates import certified
from tests.support.programs.ray_clusters import ray_cluster

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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_only_programs_with_the_token_and_the_certificate_get_in(tmp_path: Path) -> None:
    """Others are told so within seconds; Ray would let them try for minutes."""
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    with ray_cluster((1, 1), environment=secret, encrypted=True) as cluster:
        for other in (
            {},
            {"RAY_AUTH_TOKEN": TOKEN[::-1]},
            {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": ""},
            {"RAY_USE_TLS": "0"},
            certified(tmp_path, cluster.addresses),
        ):
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM, cluster.address],
                env={**cluster.environment, **other},
                capture_output=True,
                text=True,
                timeout=200,
                check=False,
            )
            if not other:
                assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
                continue
            assert (done.returncode, done.stdout) == (2, ""), done.stderr
            lines = done.stderr.splitlines()
            (line,) = [line for line in lines if line.startswith("program.py: error")]
            assert all(
                word in line for word in (cluster.address, "RAY_AUTH_TOKEN", "RAY_TLS_CA_CERT")
            )
            assert TOKEN not in done.stderr
