"""What the first host of an emulated cluster runs on the workers of all.

python -m tests.support.programs.many_hosts_programs FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from drlpp.cli.command_line import run_program
from drlpp.io.documents import write_document
from drlpp.runtime import ClusterSession, RunOptions, TimeLimits
from tests.support.models.forked import order, placements, samples

_MODEL = "tests.support.models.small:forked"


def measure_and_train(folder: Path) -> None:
    """Measure the cluster, then train without an end; ``progress`` grows by a byte with each."""
    # Notices a host that is cut off for good, and outlasts a shorter cut.
    limits = TimeLimits(host_silence_seconds=12, gathering_seconds=60)
    with (
        ClusterSession(_MODEL, cluster="auto", time_limits=limits) as session,
        (folder / "progress").open("wb") as progress,
    ):
        write_document(folder / "cluster.json", session.profile(repeats=2)[1])
        session.use_samples(*samples())
        deployment = session.deploy(placements(session.captured)["straight"])

        def count(_through: int) -> None:
            progress.write(b"x")
            progress.flush()

        while True:
            session.run(deployment, 100, RunOptions(order=order(100)), on_progress=count)


if __name__ == "__main__":
    run_program(lambda: measure_and_train(Path(sys.argv[1])), "many_hosts_programs.py")
