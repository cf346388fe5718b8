"""How a worker ends whose session has lost a file, although its controller runs."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """
import pickle
from multiprocessing import connection
from drlpp.runtime import ClusterSession, TimeLimits

limits = TimeLimits(orphan_seconds=0.5)
with ClusterSession("tests.support.models.small:perceptron", 1, time_limits=limits) as session:
    session.worker_group.prepare()
    (host,) = session.worker_group.hosts.hosts
    host._channels[0].connection.send_bytes(pickle.dumps(session.folder / "message-gone"))
    assert connection.wait([host._processes[0].sentinel], 60)
    print(*(event.how for event in host.events([])))
"""


@pytest.mark.system
def test_it_says_what_is_gone_and_that_it_failed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    assert done.stdout.strip() == "ended with exit code 1", done.stderr
    assert "worker 0 ends: its controller runs" in done.stderr
    assert "message-gone" in done.stderr
