"""A program outside of a Ray cluster, which reaches it by Ray Client: ``--cluster ray://…``."""

import subprocess
import sys

import pytest

from benchmarks.emulated_cluster.programs import free_port
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
    assert not any(host.folder == str(session.folder) for host in hosts)
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


@pytest.mark.system
@pytest.mark.timeout(600)
def test_a_program_outside_of_the_cluster_trains_to_the_references_weights() -> None:
    port = free_port()
    options = {0: ["--ray-client-server-port", str(port)]}
    with ray_cluster((2, 2), options=options) as cluster:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, client_address(cluster, port)],
            env=cluster.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, "2 True\n"), done.stderr[-3000:]
