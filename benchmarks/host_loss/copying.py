"""How long a training on two emulated hosts waits for copies of its state, and for checkpoints."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from unittest import mock

from pandas import DataFrame

from benchmarks.emulated_cluster import EmulatedCluster, ended_by_signals
from benchmarks.host_loss.emulated_hosts import CUT, EmulatedHosts
from benchmarks.host_loss.trials import HOSTS, Task
from drlpp.io.formatting import seconds_text
from drlpp.runtime import Deployment, TrainerCallbacks
from drlpp.runtime.training.trainer import Trainer


def copies_table(task: Task) -> DataFrame:
    """Train with copies on each host, then on the next one too, and return how long these took.

    Copies are made after every minibatch for which no checkpoint is due; nothing is lost.
    """
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
    return DataFrame(
        {
            "what": what,
            "times": str(len(found)),
            "parameters": f"{task.parameters:,}",
            "median": seconds_text(statistics.median(found)),
            "longest": seconds_text(max(found)),
        }
        for what, found in seconds.items()
    )
