"""Copies of a training's state that every worker keeps on its own host, between checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drlpp.runtime.deploying.deployment import Deployment, merge_stages
from drlpp.runtime.ipc.commands import PeerCopy
from drlpp.runtime.ipc.tensor_file import write_tree
from drlpp.runtime.session.reading_state import copies_of, keep_copies
from drlpp.runtime.session.session import ClusterSession
from drlpp.runtime.training.checkpoints.checkpoint import (
    TrainingCheckpoint,
    read_training_checkpoint,
)
from drlpp.schedule.pipeline import Pipeline

_GATHERED = "gathered.safetensors"


@dataclass(frozen=True)
class _Kept:
    """What is known of the copies that all workers have made.

    ``number`` names their files, ``sent`` are those on other hosts, ``facts`` is the training
    beyond what workers hold.
    """

    deployment: Deployment
    number: int
    sent: Sequence[PeerCopy]
    facts: Mapping[str, Any]


class HostCopies:
    """The state of all workers at one minibatch, each on its worker's own host.

    Workers make their copies between the same two minibatches, as for a checkpoint, but nothing
    travels and nothing is flushed to a disk. A copy outlives its worker, not its host: it can be
    used while every stage has one that is left. Only once all workers have made theirs do they
    replace those before.

    With ``peers`` the next host keeps one too of what has no replica on another, without what is in
    flight: then any host may be lost, or several that are no neighbours.

    Args:
        session: of the workers.
        peers: whether it does.
        note: called with a line where it cannot.

    Attributes:
        since: when they were made, or continued from last, by ``time.monotonic``.
    """

    def __init__(
        self, session: ClusterSession, note: Callable[[str], None], *, peers: bool = False
    ) -> None:
        self._session = session
        self._note = note
        self._peers = peers
        self._told = False
        self._kept: _Kept | None = None
        self._gathered: Path | None = None
        self._number = 0
        self.since = 0.0

    @property
    def place(self) -> tuple[int, int] | None:
        """The epochs, and the minibatches of the next, that they have; None without any."""
        if self._kept is None:
            return None
        return len(self._kept.facts["epochs"]), self._kept.facts["position"]

    def check_peers(self, pipeline: Pipeline) -> None:
        """Say so, once, where peer copies are wanted and a pipeline has no second host for them."""
        hosts = {self._session.host_of[worker] for worker in pipeline.workers}
        if self._peers and not self._told and len(hosts) == 1:
            self._told = True
            self._note(
                f"peer copies protect nothing here: all workers are on host {hosts.pop()}, and no "
                "other keeps what is lost with it; give --checkpoint-every for that"
            )

    def keep(self, deployment: Deployment, facts: Mapping[str, Any]) -> None:
        """Let every worker make a copy of what it holds.

        Raises:
            RunFailure: a worker failed; the copies before are as they were.
        """
        # The files of two are enough, and no host ever has more.
        number = (self._number + 1) % 2
        sent = keep_copies(self._session.worker_group, deployment, number, peers=self._peers)
        self._number = number
        self._kept, self._gathered = _Kept(deployment, number, sent, dict(facts)), None
        self.since = time.monotonic()

    def drop(self) -> None:
        """Forget them: there is a checkpoint that is newer."""
        self._kept = self._gathered = None

    def gather(self) -> str | None:
        """Bring together on this host what is left of them, for :meth:`read`.

        Returns:
            Why they cannot be used, None if they can.

        Raises:
            HostLost: another host is lost; once its workers are given up, this can be called again.
        """
        kept = self._kept
        if kept is None:
            return "no copy is newer"
        if self._gathered is not None:
            return None
        group, pipeline = self._session.worker_group, kept.deployment.pipeline
        found = copies_of(group, pipeline.workers, kept.number, kept.sent)
        leaders = [next((w for w in stage if w in found), None) for stage in pipeline.stages]
        if None in leaders:
            what = "copy" if self._peers else "replica"
            return f"stage {leaders.index(None)} has no {what} on a host that is left"
        model, optimizer = merge_stages(
            group.captured, [found[leader] for leader in leaders if leader is not None]
        )
        in_flight = {w: part["in_flight"] for w, part in found.items() if "in_flight" in part}
        path = self._session.folder / _GATHERED
        # Workers may still have the last one mapped.
        path.unlink(missing_ok=True)
        whole = {"model": model, "optimizer": optimizer, "in_flight": in_flight, **kept.facts}
        write_tree(path, whole)
        self._gathered = path
        return None

    def read(self, minibatches: int) -> tuple[TrainingCheckpoint, Path] | None:
        """Return what was gathered, and a file of it for the workers; None if nothing was.

        Args:
            minibatches: of an epoch.
        """
        path = self._gathered
        if path is None:
            return None
        self.since = time.monotonic()
        return read_training_checkpoint(path, self._session.captured.state, minibatches), path
