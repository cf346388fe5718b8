"""The cluster of a run that learns, of which hosts and workers may be lost and come back."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from drlpp.cli.learning.known_accelerators import extended, recognized, stand_ins
from drlpp.cli.learning.returns import Returns
from drlpp.errors import HostLost
from drlpp.io.run_folder import AGENT_NAME, CHANGES_NAME
from drlpp.placement.renumbering import Renumbering

if TYPE_CHECKING:
    from drlpp.envs import PartMeasurer
    from drlpp.runtime import ClusterSession
    from drlpp.specs.cluster import Cluster

LEAST = 2
"""Accelerators, below which there is nothing to place a model on."""

_Result = TypeVar("_Result")


class AcceleratorsReturned(Exception):
    """Accelerators that the run had to do without are there again."""


class RunCluster:
    """All accelerators that a run knows, and those that are there.

    The run's file of measurements and its ``cluster.yaml`` are about all of them, by numbers that
    stay. Agents, planners and comparisons have those that are there, numbered anew from 0.

    Args:
        session: its workers are the accelerators that may be there.
        folder: of the run.
        tell: called with a line for every change.

    Attributes:
        profile: of the operators.
        whole: all accelerators.

    Raises:
        HostLost: before there was a profile.
    """

    def __init__(self, session: ClusterSession, folder: Path, tell: Callable[[str], None]) -> None:
        from drlpp.io.documents import write_document
        from drlpp.runtime import load_or_measure_profile
        from drlpp.runtime.training.changes_file import MeasuringChanged, read_changes

        self.session = session
        self._folder = folder
        self._tell = tell
        self._cause = "the run was resumed"
        self._returns = Returns()
        self.profile, self.whole = load_or_measure_profile(session, folder)
        hosts = [session.host_of[worker] for worker in range(session.accelerators)]
        self._numbers = recognized(self.whole, hosts)
        for name, missing in stand_ins(self.whole, hosts, self._numbers).items():
            tell(
                f"host {name} stands for {missing}, which is not there: what was measured on that "
                "counts as its own; where it is another kind of machine, begin a run of its own"
            )
        changes = read_changes(folder / CHANGES_NAME, MeasuringChanged)
        known = tuple(range(self.whole.accelerators))
        self._before = changes[-1].workers if changes else known
        if max(self._numbers) >= self.whole.accelerators:
            (folder / AGENT_NAME).unlink(missing_ok=True)
            self.whole = extended(self.whole, self._numbers, session.profile()[1])
            write_document(folder / "cluster.yaml", self.whole)

    @property
    def part(self) -> Renumbering:
        """Those that are there, of all, in the order of the session."""
        numbers = tuple(self._numbers[worker] for worker in self.session.present)
        return Renumbering(numbers, self.whole.accelerators)

    @property
    def workers(self) -> Renumbering:
        """Those that are there, of the session's workers."""
        return Renumbering(self.session.present, self.session.accelerators)

    @property
    def is_whole(self) -> bool:
        """Whether all are there, by their own numbers."""
        return self.part == Renumbering.none(self.whole.accelerators)

    @property
    def cluster(self) -> Cluster:
        """The cluster of those that are there."""
        return self.whole if self.is_whole else self.whole.part(self.part.numbers)

    @property
    def measurer(self) -> PartMeasurer:
        """What measures on those that are there."""
        from drlpp.envs import PartMeasurer

        return PartMeasurer(self.session, self.workers)

    @property
    def speeds(self) -> tuple[float, ...]:
        """Of the workers that are there."""
        return tuple(self.session.speeds[worker] for worker in self.session.present)

    def are_there(self, cluster: Cluster) -> bool:
        """Return whether a cluster has the accelerators that are there, in the same order."""
        return recognized(self.whole, cluster.host_name_of) == self.part.numbers

    def can_do_without(self, lost: HostLost) -> bool:
        """Return whether there are enough without the workers that are lost."""
        present = set(self.session.present)
        return bool(present & lost.workers) and len(present - lost.workers) >= LEAST

    def surviving(self, work: Callable[[], _Result]) -> _Result:
        """Do something until it is done, with the accelerators that there are each time.

        Raises:
            HostLost: too few are left.
        """
        while True:
            try:
                return work()
            except HostLost as lost:
                if not lost.workers & set(self.session.present):
                    raise
                if not self.can_do_without(lost):
                    raise type(lost)(f"{lost}; {self._way_on(lost)}", lost.workers) from lost
                self.session.give_up(lost.workers)
                self._cause = str(lost)
                if pause := self._returns.lost(lost.workers):
                    self._cause += (
                        ", again before the agent measured anything with it (whether it has "
                        f"returned is asked after {pause} more runs)"
                    )
            except AcceleratorsReturned:
                returned = self.session.returned
                self._returns.taken(returned)
                # Some may be gone already.
                self._returns.lost(set(returned) - set(self.session.take_back()))
                self._cause = "what was lost has returned"

    def _way_on(self, lost: HostLost) -> str:
        left = len(set(self.session.present) - lost.workers)
        workers = "1 worker is" if left == 1 else f"{left} workers are"
        return (
            f"{workers} left, and measuring wants {LEAST} at least; what was measured is kept, and "
            "the same command with --resume goes on when the host is back, or with other --workers"
        )

    def look_for_returned(self) -> None:
        """Look whether accelerators that were given up are there again, which takes no time.

        Raises:
            AcceleratorsReturned: they are, and are worth a new beginning.
        """
        if self._returns.count(self.session.returned):
            raise AcceleratorsReturned

    def note_run(self) -> None:
        """Note that the agent has measured a run, and look.

        Raises:
            AcceleratorsReturned: see :meth:`look_for_returned`.
        """
        self._returns.measured()
        self.look_for_returned()

    def note_change(self, measured: int) -> None:
        """Tell, and write down, if others are there than before, after so many placements.

        The agent in the folder, which was for those, is removed.
        """
        from drlpp.runtime.training.changes_file import MeasuringChanged, write_change

        present = self.part.numbers
        if present == self._before:
            return
        gone = sorted(set(self._before) - set(present))
        there = sorted(set(present) - set(self._before))
        what = [f"{_are(gone)} not there"] if gone else []
        what += [f"{_are(there)} there"] if there else []
        change = MeasuringChanged(
            reason=f"{self._cause}: {', '.join(what) or 'hosts are in another order'}",
            given_up=tuple(gone),
            returned=tuple(there),
            workers=present,
            measured=measured,
        )
        (self._folder / AGENT_NAME).unlink(missing_ok=True)
        write_change(self._folder / CHANGES_NAME, change)
        self._tell(change.text)
        self._before = present


def _are(numbers: Collection[int]) -> str:
    listed = ", ".join(map(str, numbers))
    return f"accelerator {listed} is" if len(numbers) == 1 else f"accelerators {listed} are"
