"""A program outside of a Ray cluster, which reaches it by Ray Client: ``--cluster ray://…``."""

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from benchmarks.emulated_cluster.job import free_port
from drlpp.errors import InvalidInput
from drlpp.runtime.hosts.on_ray import connection as connecting
from tests.support.programs.ray_clusters import client_address, ray_cluster

PROGRAM = """
import sys
from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import ClusterSession, Minibatches, RunOptions, run_reference
from drlpp.schedule.method import Method
from tests.support.models.forked import largest_difference, order, placements, samples
from tests.support.programs.ray_clusters import PATIENT
from tests.support.training.placement_files import ADAM

captured = capture(ModelReference.named("tests.support.models.small:forked"))
method = Method(policy="pipeoptim")
with ClusterSession(captured, cluster=sys.argv[1], time_limits=PATIENT) as session:
    hosts = session.worker_group.hosts.hosts
    # The cluster's machines have none of this program's files.
    assert not any(host._shares_folder for host in hosts)
    session.use_samples(*samples())
    placement = placements(captured)["straight"]
    for _ in range(2):
        deployment = session.deploy(placement, method, ADAM)
        session.run(deployment, 12, RunOptions(order=order(12)))
        found = session.collect(deployment)[0]
        # Others take their place.
        hosts[1].kill()
expected = run_reference(
    captured, placement, Minibatches(*samples(), order(12)), 12, method=method, optimizer=ADAM
)
print(len(hosts), largest_difference(found, expected.state) < 1e-9)
"""

COMMANDS = """
import sys
from pathlib import Path
from drlpp.cli.main import main
from tests.support.programs import shell
from tests.support.programs.ray_clusters import patience

names = ("c.json", "cluster.yaml", "p.json")
costs, cluster, placement = (Path(sys.argv[2]) / name for name in names)
model, outside = "tests.support.models.small:forked", ["--cluster", sys.argv[1]]
planned = ["--profile", costs, "--cluster", cluster, "--planner", "gpipe", "-o", placement]
run = ["--timeline", "run", "--minibatches", 2, "--model", model]
with patience():
    for command in (
        ["profile", model, "-o", costs, *outside],
        ["plan", model, *planned],
        ["show", placement, *run, *outside],
    ):
        done = shell.finish(main, "drlpp", *command)
        assert done.code == 0, done.err
print("as it ran" in done.out)
"""


@pytest.mark.system
@pytest.mark.timeout(600)
def test_programs_outside_of_the_cluster(tmp_path: Path) -> None:
    """One trains to the reference's weights; commands do as within."""
    port = free_port()
    options = {0: ["--ray-client-server-port", str(port)]}
    with ray_cluster((2, 2), options=options) as cluster:
        address = client_address(cluster, port)
        for program, told in ((PROGRAM, "2 True\n"), (COMMANDS, "True\n")):
            done = subprocess.run(
                [sys.executable, "-c", program, address, str(tmp_path)],
                env=cluster.environment,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert (done.returncode, done.stdout) == (0, told), done.stderr[-3000:]


@pytest.mark.parametrize("late", [1, 5])
def test_a_head_that_starts_a_program_too_late_is_asked_twice(
    monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    asked: list[str] = []

    def init(address: str, **_: object) -> None:
        asked.append(address)
        if len(asked) <= late:
            raise ConnectionError("Initialization failure from server:\nTraceback …")

    monkeypatch.setattr(connecting.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(connecting.ray, "init", init)
    monkeypatch.setattr(connecting, "_wait_for_greeting", lambda address: None)
    address = "ray://head:10001"
    with nullcontext() if late == 1 else pytest.raises(InvalidInput, match="cannot be reached"):
        connecting.connect(address)
    assert asked == [address, address]
