"""Who may use a Ray cluster, and what those are told who may not."""

import subprocess
import sys
from collections.abc import Mapping

import pytest

from drlpp.runtime.hosts import session_hosts
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


def run(cluster: RayCluster, environment: Mapping[str, str]) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, cluster.address],
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


def test_a_cluster_without_ray_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"not installed: pip install 'drlpp\[ray\]'"):
        session_hosts.default_num_workers(cluster="auto")


def test_a_program_of_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from drlpp.runtime import ClusterSession

    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with pytest.raises(ValueError, match=r"started by torchrun, .* name a Ray cluster"):
        ClusterSession("tests.support.models.small:forked", 1)
