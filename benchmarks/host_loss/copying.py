"""How long does training wait for copies of its state on the hosts, and for a checkpoint?

    python -m benchmarks.host_loss.copying        # needs root; seven minutes

The decoder of 60 million parameters of ``benchmarks.host_loss`` trains on two hosts of a Ray
cluster, emulated with 1 Gbit/s between them. Seconds are those in which the pipeline waits.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Annotated
from unittest import mock

import typer
from pandas import DataFrame

from benchmarks.emulated_cluster import EmulatedCluster, ended_by_signals
from benchmarks.host_loss.emulated_hosts import CUT, EmulatedHosts
from benchmarks.host_loss.trials import HOSTS, Task
from benchmarks.machine import this_machine
from benchmarks.report import terminal
from drlpp.cli.command_line import build_console, run_program
from drlpp.io.formatting import seconds_text
from drlpp.runtime import Deployment, TrainerCallbacks
from drlpp.runtime.training.trainer import Trainer
from drlpp.schedule.method import Method

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def copying(
    width: Annotated[int, typer.Option(help="Of the decoder.")] = 512,
    blocks: Annotated[int, typer.Option(help="Of the decoder.")] = 19,
    minibatches: Annotated[int, typer.Option(help="Of each of two epochs.")] = 12,
) -> None:
    """Time copies and checkpoints of a training."""
    console = build_console()
    console.print(str(this_machine()))
    task = Task.of(width, blocks, 2, minibatches, 4, Method(policy="pipeoptim"))
    seconds: dict[str, list[float]] = defaultdict(list)
    save = Trainer._save

    def timed(trainer: Trainer, deployment: Deployment, *, copies: bool = False) -> None:
        begin = time.perf_counter()
        save(trainer, deployment, copies=copies)
        peers = " and on the next" if trainer.plan.peer_copies else ""
        what = f"copies on each host{peers}" if copies else "a checkpoint"
        seconds[what].append(time.perf_counter() - begin)

    with (
        ended_by_signals(),
        EmulatedCluster(HOSTS, quotas=False) as emulated,
        EmulatedHosts(emulated, CUT).used(),
        mock.patch.object(Trainer, "_save", timed),
        tempfile.TemporaryDirectory(prefix="host-loss-") as folder,
    ):
        for peers in (False, True):
            plan = replace(task.plan, copy_every=1, peer_copies=peers)
            own = Path(folder) / str(peers)
            own.mkdir()
            quiet = TrainerCallbacks(on_begin=lambda: None)
            with replace(task, plan=plan).trainer(own, quiet, emulated.ray.address) as trainer:
                trainer.train(task.document.plan(task.captured.graph))
    rows = [
        {
            "what": what,
            "times": str(len(found)),
            "parameters": f"{task.parameters:,}",
            "median": seconds_text(statistics.median(found)),
            "longest": seconds_text(max(found)),
        }
        for what, found in seconds.items()
    ]
    console.print(terminal(DataFrame(rows)))


if __name__ == "__main__":
    run_program(app, "host_loss.copying")
