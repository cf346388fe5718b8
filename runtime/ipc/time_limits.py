"""How long a session waits before it gives up: every time limit of the runtime, in one object."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from drlpp.errors import InvalidInput

_LONGEST_SECONDS = 10_000_000
"""Four months; the system's clocks take no larger number."""


@dataclass(frozen=True, kw_only=True)
class TimeLimits:
    """How long a session waits before it gives up, all in seconds.

    Attributes:
        answer_seconds: silence of all workers after which a trial counts as hung, from the first
            trial on; None for 20 times the longest silence so far, and at least 20 s.
        first_answer_seconds: the same limit before a session's first results, while workers load or
            save weights or samples.
        host_silence_seconds: silence of another host, or of the Ray cluster's head, after which it
            is lost; failures of the network that last less than half of it are survived.
        gathering_seconds: for hosts and their accelerators to be there, and free.

    Raises:
        InvalidInput: a limit is no time.
    """

    answer_seconds: float | None = None
    first_answer_seconds: float = 120.0
    host_silence_seconds: float = 4.0
    gathering_seconds: float = 10.0

    # What nobody has had to change.
    least_answer_seconds: ClassVar = 20.0
    """What the limit that follows from earlier silences does not go below."""
    fork_seconds: ClassVar = 90.0
    """For the fork server to start a worker, loading torch before; then it is replaced."""
    host_start_seconds: ClassVar = 120.0
    """For another host to start its workers: it may have to replace its fork server."""
    other_failure_seconds: ClassVar = 0.5
    """After a worker has failed, to learn whether the cause is another that has ended."""
    stopped_seconds: ClassVar = 2.0
    """A wait that takes so much longer than asked for means that this program was stopped."""
    reaping_seconds: ClassVar = 0.5
    """For the end of a process to be known once its fork server has ended."""
    end_seconds: ClassVar = 10.0
    """For a killed process to be gone."""
    orphan_seconds: ClassVar = 10.0
    """For a worker whose connection to the controller has ended to find out whether that has."""
    abandoned_seconds: ClassVar = 2.0
    """For a controller that dies to give up its folder, which its workers then remove."""
    compiling_seconds: ClassVar = 900.0
    """For workers to compile their stages."""
    group_seconds: ClassVar = 24 * 3600.0
    """For workers to connect, and for a message; long, since the controller watches them."""

    def __post_init__(self) -> None:
        for name, seconds in vars(self).items():
            if seconds is None and name == "answer_seconds":
                continue
            if not isinstance(seconds, int | float) or not 0 < seconds <= _LONGEST_SECONDS:
                raise InvalidInput(
                    f"a time limit of {seconds} s was given ({name}); expected a number above 0, "
                    f"up to {_LONGEST_SECONDS}"
                )


DEFAULT_TIME_LIMITS = TimeLimits()


def time_limits_of(
    given: TimeLimits | None = None, timeout_seconds: float | None = None
) -> TimeLimits:
    """Return a session's limits: ``given`` or the defaults, ``timeout_seconds`` in them."""
    limits = given or DEFAULT_TIME_LIMITS
    return limits if timeout_seconds is None else replace(limits, answer_seconds=timeout_seconds)
