"""What the first host of an emulated cluster runs on the workers of all: it writes JSON.

python -m tests.support.programs.many_hosts_programs NAME FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from drlpp.capturing.capture import capture
from drlpp.capturing.graph import OpGraph
from drlpp.cli.command_line import run_program
from drlpp.io.documents import write_document
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement, Stage
from drlpp.runtime import ClusterSession, RunOptions, TimeLimits
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.forked import order, placements, samples
from tests.support.programs.ray_clusters import PATIENT

MINIBATCHES = 12
OPTIMIZER = OptimizerSpec(name="sgd", options={"lr": 0.05, "momentum": 0.9})
METHOD = Method(policy="pipeoptim")
SHAPES = ("straight", "replicated", "branching")
WIDE = ModelReference.named("tests.support.programs.many_hosts_programs:wide")

_BATCH, _NARROW, _WIDE = 64, 128, 4096


def wide(batch_size: int = _BATCH) -> Task:
    """Three equal blocks, narrow where they meet and wide inside: 32 kB or 1 MiB to send.

    Each is as much work before its widest activation as after it, so that two equal hosts would
    share the second one, were it not for the link.
    """
    blocks = [
        nn.Sequential(nn.Linear(_NARROW, _WIDE), nn.Tanh(), nn.Linear(_WIDE, _NARROW))
        for _ in range(3)
    ]
    module = nn.Sequential(*blocks, nn.Linear(_NARROW, 5))
    targets = torch.randint(0, 5, (batch_size,))
    return Task(module, (torch.randn(batch_size, _NARROW),), targets, F.cross_entropy)


def wide_placements(graph: OpGraph) -> dict[str, Placement]:
    """Three stages, one on the first host and two on the second; one accelerator stays idle.

    Between the hosts ``narrow`` sends what the first block returns, ``wide`` the activation inside
    of the second. No other cut is wide, since sending takes processor time too.
    """
    places = [tuple(map(int, (op.module or "").split("."))) for op in graph.operators]
    found = {}
    for name, cuts in {"narrow": [(1, 0), (2, 0)], "wide": [(1, 2), (2, 0)]}.items():
        stage_of = [sum(place >= cut for cut in cuts) for place in places]
        found[name] = Placement(
            stages=tuple(
                Stage(
                    operators=tuple(op for op, of in enumerate(stage_of) if of == stage),
                    accelerators=(accelerator,),
                )
                for stage, accelerator in enumerate((0, 2, 3))
            )
        )
    return found


def train_and_measure(folder: Path) -> None:
    """Train the forked model in several shapes; profile the wide one and measure two placements."""
    captured = capture(ModelReference.named("tests.support.models.small:forked"))
    with ClusterSession(captured, cluster="auto", time_limits=PATIENT) as session:
        session.use_samples(*samples())
        for shape in SHAPES:
            deployment = session.deploy(placements(captured)[shape], METHOD, OPTIMIZER)
            session.run(deployment, MINIBATCHES, RunOptions(order=order(MINIBATCHES)))
            torch.save(session.collect(deployment)[0], folder / f"{shape}.pt")
        hosts = [session.host_of[worker] for worker in range(session.accelerators)]
    with ClusterSession(WIDE, method=METHOD, cluster="auto", time_limits=PATIENT) as session:
        profile, cluster = session.profile()
        write_document(folder / "profile.json", profile)
        write_document(folder / "cluster.json", cluster)
        seconds: dict[str, list[float]] = {}
        # In turns, so that whatever else the machine does is in both.
        for _ in range(3):
            for name, placement in wide_placements(session.graph).items():
                outcome = session.measure(placement, 20)
                assert isinstance(outcome, Measurement), outcome
                seconds.setdefault(name, []).append(outcome.seconds_per_minibatch)
    (folder / "measured.json").write_text(json.dumps({"hosts": hosts, "seconds": seconds}))


def train_on(folder: Path) -> None:
    """Train until the file ``enough`` is there; another grows by a byte with every progress."""
    captured = capture(ModelReference.named("tests.support.models.small:forked"))
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

        while not (folder / "enough").exists():
            session.run(deployment, 100, RunOptions(order=order(100)), on_progress=count)
    print("trained enough")


def main() -> None:
    """Run the program that the command line names."""
    programs = {"measure": train_and_measure, "train": train_on}
    programs[sys.argv[1]](Path(sys.argv[2]))


if __name__ == "__main__":
    run_program(main, "many_hosts_programs.py")
