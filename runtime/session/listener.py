"""Hearing what happens on the hosts of a session, and how long nobody said a word."""

from __future__ import annotations

import time
from collections.abc import Sequence
from multiprocessing import connection as mp_connection
from typing import Any

from drlpp.runtime.hosts.host import Event
from drlpp.runtime.hosts.present_workers import PresentWorkers, asked

_LOOK_SECONDS = 1.0


class Listener:
    """Hears what workers answer, and which of them end.

    While this process is stopped (Ctrl-Z), and its workers with it, nobody waits: that counts as no
    silence, but in ``stops``.

    Args:
        present: the workers that there are.

    Attributes:
        longest_silence_seconds: without a word from any worker while one was waited for.
        stops: how often this process was stopped while it waited for workers, and continued.
    """

    def __init__(self, present: PresentWorkers) -> None:
        self._present = present
        self._silence_seconds = 0.0
        self.longest_silence_seconds = 0.0
        self.stops = 0

    def forget_silence(self) -> None:
        """Let what nobody has said so far count for nothing."""
        self._silence_seconds = 0.0

    def note_silence(self) -> None:
        """Somebody has said something: note how long nobody had."""
        self.longest_silence_seconds = max(self.longest_silence_seconds, self._silence_seconds)
        self._silence_seconds = 0.0

    def events(self, patience: float, stopped_seconds: float) -> list[Event]:
        """Return what has happened on the hosts; nothing if nothing has in time.

        Args:
            patience: seconds to wait for it.
            stopped_seconds: longer than asked for, after which a wait tells that this process was
                stopped meanwhile.

        Raises:
            HostLost: a host does not answer.
        """
        left = patience
        while True:
            hosts = self._present.hosts
            waitables = [w for host in hosts for w in asked(host, host.waitables)]
            ready, seconds = self._wait(waitables, min(left, _LOOK_SECONDS), stopped_seconds)
            left -= seconds
            events = [e for host in hosts for e in asked(host, host.events, ready)]
            if events or left <= 0:
                return events

    def _wait(
        self, waitables: Sequence[Any], seconds: float, stopped_seconds: float
    ) -> tuple[list[Any], float]:
        """Return the waitables that are ready, and how long they were waited for."""
        begin = time.monotonic()
        ready = mp_connection.wait(waitables, max(0.0, seconds))
        waited = time.monotonic() - begin
        if waited > seconds + stopped_seconds:
            self.stops += 1
            waited = seconds
        self._silence_seconds += waited
        return ready, waited
