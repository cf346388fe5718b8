"""The cluster of a run that learns, of which hosts and workers may be lost and come back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from drlpp.cli.learning.known_accelerators import extended, recognized, stand_ins
from drlpp.cli.learning.returns import Returns
from drlpp.errors import HostLost
from drlpp.io.formatting import accelerators_text
from drlpp.io.run_folder import AGENT_NAME, CHANGES_NAME
from drlpp.placement.renumbering import Renumbering

if TYPE_CHECKING:
    from drlpp.envs import PartMeasurer
    from drlpp.runtime import ClusterSession
    from drlpp.specs.cluster import Cluster
    from drlpp.training_race.present_part import PresentPart

LEAST = 2
"""Accelerators, below which there is nothing to place a model on."""

_Result = TypeVar("_Result")


def least_to_begin_with(workers: int, hosts: Cluster | None) -> int | None:
    """Return how many of a session's workers are enough at first: all, unless hosts are named."""
    return None if hosts is None else min(LEAST, workers)


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
        takes_others: whether the run can be resumed with another number of workers.

    Attributes:
        profile: of the operators.
        whole: all accelerators.

    Raises:
        HostLost: too few accelerators are left.
    """

    def __init__(
        self,
        session: ClusterSession,
        folder: Path,
        tell: Callable[[str], None],
        *,
        takes_others: bool = True,
    ) -> None:
        from drlpp.runtime import load_or_measure_profile
        from drlpp.runtime.training.changes_file import MeasuringChanged, read_changes

        self.session = session
        self._folder = folder
        self._tell = tell
        self._takes_others = takes_others
        self._cause = session.missing_hosts or "the run was resumed"
        self._returns = Returns()
        self.profile, self.whole = self._without_lost(
            lambda: load_or_measure_profile(session, folder)
        )
        if len(session.present) < session.accelerators:
            tell(
                f"{self._cause}: the profile is of the {len(session.present)} workers that are "
                "there; others are measured when they are there too"
            )
        hosts = [session.host_of[worker] for worker in range(session.accelerators)]
        numbers = recognized(self.whole, hosts)
        for name, missing in stand_ins(self.whole, hosts, numbers).items():
            tell(
                f"host {name} stands for {missing}, which is not there: what was measured on that "
                "counts as its own; where it is another kind of machine, begin a run of its own"
            )
        # Of those that nothing is known of, none has a number before it is measured.
        known = tuple(range(self.whole.accelerators))
        self._number_of = {
            worker: number for worker, number in enumerate(numbers) if number in known
        }
        changes = read_changes(folder / CHANGES_NAME, MeasuringChanged)
        self._before = changes[-1].workers if changes else known
        self._without_lost(self._measure_unknown)

    def _measure_unknown(self) -> None:
        """Measure the accelerators that have joined; their numbers are behind the known ones."""
        from drlpp.io.documents import write_document

        unknown = [worker for worker in self.session.present if worker not in self._number_of]
        if not unknown:
            return
        numbers = dict(zip(unknown, count(self.whole.accelerators)))
        number_of = self._number_of | numbers
        found = self.session.profile()[1]
        there = [number_of[worker] for worker in self.session.present]
        (self._folder / AGENT_NAME).unlink(missing_ok=True)
        self.whole = extended(self.whole, there, found)
        write_document(self._folder / "cluster.yaml", self.whole)
        self._number_of = number_of

    @property
    def part(self) -> Renumbering:
        """Those that are there, of all, in the order of the session."""
        numbers = tuple(self._number_of[worker] for worker in self.session.present)
        return Renumbering(numbers, self.whole.accelerators)

    @property
    def workers(self) -> Renumbering:
        """Those that are there, of the session's workers."""
        return Renumbering(self.session.present, self.session.accelerators)

    @property
    def present(self) -> PresentPart:
        """Those that are there, for a race to a loss."""
        from drlpp.training_race.present_part import PresentPart

        return PresentPart(self.part, self.workers)

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
            self._without_lost(self._measure_unknown)
            try:
                return self._without_lost(work)
            except AcceleratorsReturned:
                returned = self.session.returned
                self._returns.taken(returned)
                # Some may be gone already.
                self._returns.lost(set(returned) - set(self.session.take_back()))
                self._cause = "what was lost has returned"

    def _without_lost(self, work: Callable[[], _Result]) -> _Result:
        """Do something until nothing is lost meanwhile.

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
                        ", again before anything was measured with it (whether it has "
                        f"returned is asked after {pause} more runs)"
                    )

    def _way_on(self, lost: HostLost) -> str:
        left = len(set(self.session.present) - lost.workers)
        workers = "1 worker is" if left == 1 else f"{left} workers are"
        others = ", or with other --workers"
        if not self._takes_others:
            others = "; with other --workers it would be another run, which needs another --out"
        return (
            f"{workers} left, and a comparison wants {LEAST} at least; all that was measured and "
            f"trained is kept in {self._folder}, and the same command with --resume goes on when "
            f"the host is back{others}"
        )

    def look_for_returned(self) -> None:
        """Look whether accelerators that were given up are there again, which takes no time.

        Raises:
            AcceleratorsReturned: they are, and are worth a new beginning.
        """
        if self._returns.count(self.session.returned):
            raise AcceleratorsReturned

    def note_run(self) -> None:
        """Note that a run was measured, or trained to its next evaluation, and look.

        Raises:
            AcceleratorsReturned: see :meth:`look_for_returned`.
        """
        self._returns.measured()
        self.look_for_returned()

    def note_change(self, measured: int, trained: int | None = None) -> None:
        """Tell, and write down, if others are there than before.

        The agent in the folder, which was for those, is removed.

        Args:
            measured: placements so far.
            trained: trainings of a race so far, if it is that which goes on.
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
            trained=trained,
        )
        (self._folder / AGENT_NAME).unlink(missing_ok=True)
        write_change(self._folder / CHANGES_NAME, change)
        self._tell(change.text)
        self._before = present


def _are(numbers: Sequence[int]) -> str:
    return f"{accelerators_text(numbers)} {'is' if len(numbers) == 1 else 'are'}"
