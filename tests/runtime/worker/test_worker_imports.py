"""A worker is one of many processes on a host: it imports what it needs and nothing else."""

import json
import subprocess
import sys

WORKER = "drlpp.runtime.worker.worker_process"
DENIED = (
    "matplotlib.",
    "rich.",
    "typer.",
    "scipy.",
    "gymnasium.",
    "stable_baselines3.",
    "torch_geometric.",
    "ray.",
    "drlpp.planners.",
    "drlpp.simulator.",
    "drlpp.cli.",
    "drlpp.models.",
    "drlpp.capturing.capture.",
    "drlpp.runtime.session.",
)


PROGRAM = f"""
import json, sys
import drlpp, drlpp.runtime
assert "torch" not in sys.modules
import {WORKER}
of_worker = sorted(sys.modules)
import drlpp.runtime.training.training, drlpp.runtime.session.session, drlpp.cli.main
import drlpp.cli.learn_command
from drlpp.runtime.hosts.session_hosts import default_num_workers, hosts_for
assert default_num_workers() == 4
print(json.dumps([of_worker, sorted(sys.modules)]))
"""


def test_a_worker_imports_little_the_package_nothing_and_a_session_on_one_machine_no_ray() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    of_worker, of_session = json.loads(done.stdout)
    assert WORKER in of_worker
    assert not [name for name in of_worker if f"{name}.".startswith(DENIED)]
    assert "drlpp.runtime.hosts.host" in of_session
    # They take seconds, and only the paper's agent needs them.
    absent = ("ray.", "torch_geometric.", "stable_baselines3.")
    assert not [name for name in of_session if f"{name}.".startswith(absent)]
