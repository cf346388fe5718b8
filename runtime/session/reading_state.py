"""What the workers of a deployment hold, read into this process or stored by each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from drlpp.runtime.deploying.deployment import Deployment
from drlpp.runtime.ipc.protocol import Collect
from drlpp.runtime.ipc.tensor_file import read_checkpoint
from drlpp.runtime.session.worker_group import WorkerGroup

_FILE = "stage-{}.safetensors"


class PartsWritten(NamedTuple):
    """The files of a checkpoint that its workers have stored.

    Attributes:
        folder: that they are in.
        workers: that have stored one each.
        leaders: those of them with the weights of a stage.
    """

    folder: str
    workers: tuple[int, ...]
    leaders: tuple[int, ...]

    def name_of(self, worker: int) -> str:
        """Return the name of a worker's file."""
        return f"{self.folder}/worker-{worker}.safetensors"


def leaders_of(deployment: Deployment) -> tuple[int, ...]:
    """Return the first worker of every stage, none twice."""
    return tuple(sorted({workers[0] for workers in deployment.pipeline.stages}))


def read_stages(
    group: WorkerGroup, workers: Sequence[int], *, in_flight: bool
) -> dict[int, dict[str, Any]]:
    """Return what workers hold of their stages, with what is in flight or without."""
    group.command({worker: Collect(_FILE.format(worker), in_flight) for worker in workers})
    stages = {}
    for worker in workers:
        stages[worker] = read_checkpoint(group.fetch(worker, _FILE.format(worker)))
        group.remove(_FILE.format(worker))
    return stages


def store_parts(
    group: WorkerGroup, deployment: Deployment, storage: str, folder: str
) -> PartsWritten:
    """Let every worker store what it holds in a folder of a storage that all hosts reach."""
    parts = PartsWritten(folder, tuple(deployment.pipeline.workers), leaders_of(deployment))
    group.command(
        {
            worker: Collect(
                _FILE.format(worker),
                in_flight=True,
                storage=storage,
                name=parts.name_of(worker),
                weights=worker in parts.leaders,
            )
            for worker in parts.workers
        }
    )
    return parts
