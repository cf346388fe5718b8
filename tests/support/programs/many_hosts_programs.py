"""What the first host of an emulated cluster runs on the workers of all.

python -m tests.support.programs.many_hosts_programs NAME FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from drlpp.capturing.capture import capture
from drlpp.cli.command_line import run_program
from drlpp.io.documents import write_document
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import ClusterSession, RunOptions, TimeLimits
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.forked import order, placements, samples
from tests.support.programs.ray_clusters import PATIENT

MINIBATCHES = 12
OPTIMIZER = OptimizerSpec(name="sgd", options={"lr": 0.05, "momentum": 0.9})
METHOD = Method(policy="pipeoptim")
SHAPE = "branching"
_MODEL = ModelReference.named("tests.support.models.small:forked")


def train_and_measure(folder: Path) -> None:
    """Train, and measure the cluster."""
    captured = capture(_MODEL)
    with ClusterSession(captured, cluster="auto", time_limits=PATIENT) as session:
        session.use_samples(*samples())
        deployment = session.deploy(placements(captured)[SHAPE], METHOD, OPTIMIZER)
        session.run(deployment, MINIBATCHES, RunOptions(order=order(MINIBATCHES)))
        torch.save(session.collect(deployment)[0], folder / "weights.pt")
        session.use_samples(captured.task.inputs, captured.task.targets)
        write_document(folder / "cluster.json", session.profile(repeats=2)[1])


def train_on(folder: Path) -> None:
    """Train without an end; the file ``progress`` grows by a byte with every progress."""
    captured = capture(_MODEL)
    # Notices a host that is cut off for good, and outlasts a shorter cut.
    limits = TimeLimits(host_silence_seconds=15, gathering_seconds=60)
    with (
        ClusterSession(captured, cluster="auto", time_limits=limits) as session,
        (folder / "progress").open("wb") as progress,
    ):
        session.use_samples(*samples())
        deployment = session.deploy(placements(captured)["straight"], METHOD, OPTIMIZER)

        def count(_through: int) -> None:
            progress.write(b"x")
            progress.flush()

        while True:
            session.run(deployment, 100, RunOptions(order=order(100)), on_progress=count)


def main() -> None:
    """Run the program that the command line names."""
    programs = {"measure": train_and_measure, "train": train_on}
    programs[sys.argv[1]](Path(sys.argv[2]))


if __name__ == "__main__":
    run_program(main, "many_hosts_programs.py")
