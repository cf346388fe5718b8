"""What the workers of a deployment hold, read back into this process or stored by each of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from drlpp.errors import HostLost
from drlpp.runtime.deploying.deployment import Deployment, merge_stages
from drlpp.runtime.ipc.commands import Collect, PeerCopy
from drlpp.runtime.ipc.tensor_file import read_checkpoint as read_tree
from drlpp.runtime.session.worker_group import WorkerGroup
from drlpp.schedule.pipeline import Pipeline


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


def read_model(
    group: WorkerGroup, deployment: Deployment
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the model's weights and buffers by name, and the optimizer's state by parameter."""
    stages = read_stages(group, _leaders(deployment), in_flight=False)
    return merge_stages(group.captured, stages.values())


def read_checkpoint(group: WorkerGroup, deployment: Deployment) -> dict[str, Any]:
    """Return the same, as ``model`` and ``optimizer``, and what every worker has ``in_flight``."""
    stages = read_stages(group, deployment.pipeline.workers, in_flight=True)
    in_flight = {worker: stage["in_flight"] for worker, stage in stages.items()}
    leaders = [stages[workers[0]] for workers in deployment.pipeline.stages]
    model, optimizer = merge_stages(group.captured, leaders)
    return {"model": model, "optimizer": optimizer, "in_flight": in_flight}


def read_stages(
    group: WorkerGroup, workers: Sequence[int], *, in_flight: bool
) -> dict[int, dict[str, Any]]:
    """Return what workers hold of their stages, with what is in flight or without."""
    files = {worker: _file_of(worker) for worker in workers}
    group.command({worker: Collect(file, in_flight) for worker, file in files.items()})
    stages = {}
    for worker, file in files.items():
        stages[worker] = read_tree(group.files.fetch(worker, file))
        group.files.remove(file)
    return stages


def store_parts(
    group: WorkerGroup, deployment: Deployment, storage: str, folder: str
) -> PartsWritten:
    """Let every worker store what it holds in a folder of a storage that all hosts reach."""
    leaders = _leaders(deployment)
    parts = PartsWritten(folder, tuple(deployment.pipeline.workers), leaders)
    group.command(
        {
            worker: Collect(
                _file_of(worker),
                in_flight=True,
                storage=storage,
                name=parts.name_of(worker),
                weights=worker in leaders,
            )
            for worker in parts.workers
        }
    )
    return parts


def keep_copies(
    group: WorkerGroup, deployment: Deployment, number: int, *, peers: bool
) -> tuple[PeerCopy, ...]:
    """Let every worker write what it holds into a file on its own host, where it stays.

    Args:
        group: the workers.
        deployment: what they hold.
        number: of the files.
        peers: whether another host keeps a copy as well, of stages that have no replica there.

    Returns:
        These copies.
    """
    pipeline = deployment.pipeline
    receivers = neighbours(pipeline, group.hosts.places.host_names) if peers else {}
    sent = tuple(
        PeerCopy(sender, receiver, f"peer-{_copy_of(sender, number)}")
        for sender, receiver in receivers.items()
    )
    if sent:
        # Apart, since it does not travel, and may be larger than all that does: what a lost host
        # had in flight is computed again.
        group.command(
            {
                w: Collect(_in_flight_of(w, number), in_flight=True, weights=False)
                for w in pipeline.workers
            }
        )
    group.command(
        {
            w: Collect(_copy_of(w, number), in_flight=not sent, peer_copies=sent)
            for w in pipeline.workers
        }
    )
    return sent


def neighbours(pipeline: Pipeline, hosts: Sequence[str]) -> dict[int, int]:
    """Return the workers whose stage is on one host alone, and for each one of the next host.

    Args:
        pipeline: its stages.
        hosts: of all workers.
    """
    there: dict[str, list[int]] = {}
    for worker in pipeline.workers:
        there.setdefault(hosts[worker], []).append(worker)
    following = dict(zip(there, [*list(there)[1:], *there], strict=False))
    found = {}
    for first, *others in pipeline.stages:
        host = hosts[first]
        if len(there) > 1 and all(hosts[other] == host for other in others):
            receivers = there[following[host]]
            found[first] = receivers[there[host].index(first) % len(receivers)]
    return found


def copies_of(
    group: WorkerGroup, workers: Sequence[int], number: int, sent: Sequence[PeerCopy]
) -> dict[int, dict[str, Any]]:
    """Return the copies with that number that are left, by worker; their files are removed.

    Raises:
        HostLost: a host is lost whose workers were not given up; no file is removed.
    """
    files = [(worker, worker, _copy_of(worker, number)) for worker in workers]
    files += [(copy.sender, copy.receiver, copy.file) for copy in sent]
    in_flight = {worker: _in_flight_of(worker, number) for worker in workers} if sent else {}
    paths: dict[int, Path] = {}
    apart: dict[int, Path] = {}
    with group.present.noting_lost_hosts():
        for worker, keeper, file in files:
            if worker not in paths:
                try:
                    paths[worker] = group.files.fetch(keeper, file)
                    if keeper == worker in in_flight:
                        apart[worker] = group.files.fetch(worker, in_flight[worker])
                except HostLost:
                    if keeper in group.present.workers:
                        raise
    copies = {worker: read_tree(path) for worker, path in paths.items()}
    for worker, path in apart.items():
        copies[worker]["in_flight"] = read_tree(path)["in_flight"]
    for file in [*(file for _, _, file in files), *in_flight.values()]:
        # A host that is lost only now is noticed when its workers are started.
        with suppress(HostLost):
            group.files.remove(file)
    return copies


def _leaders(deployment: Deployment) -> tuple[int, ...]:
    """Return the first worker of every stage, none twice."""
    return tuple(sorted({workers[0] for workers in deployment.pipeline.stages}))


def _file_of(worker: int) -> str:
    return f"stage-{worker}.safetensors"


def _copy_of(worker: int, number: int) -> str:
    return f"copy-{number}-{worker}.safetensors"


def _in_flight_of(worker: int, number: int) -> str:
    return f"in-flight-{number}-{worker}.safetensors"
