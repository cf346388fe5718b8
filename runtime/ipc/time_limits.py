"""How long a session waits before it gives up: every time limit of the runtime, in one object."""

from __future__ import annotations

from dataclasses import dataclass, replace

from drlpp.errors import InvalidInput

_LONGEST_TIMEOUT_SECONDS = 10_000_000
"""Four months; the system's clocks take no larger number."""


def checked_timeout(seconds: float | None) -> float | None:
    """Check and return a time limit for silent workers, None for the usual one.

    Raises:
        InvalidInput: it is no time.
    """
    if seconds is None:
        return None
    if not isinstance(seconds, int | float) or not 0 < seconds <= _LONGEST_TIMEOUT_SECONDS:
        raise InvalidInput(
            f"a time limit of {seconds} s was given; expected a number above 0, up to "
            f"{_LONGEST_TIMEOUT_SECONDS}"
        )
    return seconds


@dataclass(frozen=True, kw_only=True)
class TimeLimits:
    """How long a session waits before it gives up, all in seconds.

    Attributes:
        answer_seconds: silence of all workers after which a trial counts as hung, from the first
            trial on; None for 20 times the longest silence so far, within the next two limits.
        first_answer_seconds: the same limit before a session's first results, while workers load or
            save weights or samples, and for plain PyTorch.
        least_answer_seconds: what the limit that follows from earlier silences does not go below.
        other_failure_seconds: after a worker has failed, to learn whether the cause is another
            worker that has ended.
        stopped_seconds: a wait that takes this much longer than it was to take means that this
            program was stopped (Ctrl-Z), and counts for no limit.
        fork_seconds: for the fork server to start a worker, including the loading of torch; then
            the server is replaced.
        host_start_seconds: for another host to start its workers; more than `fork_seconds`.
        farewell_seconds: for a worker to end when it is asked to, before it is killed.
        end_seconds: for a killed process to be gone.
        orphan_seconds: for a worker whose connection to the controller has ended to find out
            whether the controller has.
        abandoned_seconds: for a controller that dies to give up its folder, which its workers then
            remove.
        link_seconds: for the two ends of a link that is measured to meet, and for one message.
        group_seconds: for the workers of a placement to connect, and for one message; long, since
            the controller watches them.
        host_silence_seconds: silence of another host, or of the Ray cluster's head, after which it
            is lost; failures of the network that last less than half of it are survived.
        lease_seconds: for another host without a word from the controller to end its workers; more
            than `host_silence_seconds`.
        gathering_seconds: for hosts and their accelerators to be there, and free.

    Raises:
        InvalidInput: a limit is no time, or too long for another one.
    """

    answer_seconds: float | None = None
    first_answer_seconds: float = 120.0
    least_answer_seconds: float = 20.0
    other_failure_seconds: float = 0.5
    stopped_seconds: float = 2.0
    fork_seconds: float = 90.0
    host_start_seconds: float = 120.0
    farewell_seconds: float = 0.5
    end_seconds: float = 10.0
    orphan_seconds: float = 10.0
    abandoned_seconds: float = 2.0
    link_seconds: float = 60.0
    group_seconds: float = 24 * 3600.0
    host_silence_seconds: float = 4.0
    lease_seconds: float = 30.0
    gathering_seconds: float = 10.0

    def __post_init__(self) -> None:
        for name, seconds in vars(self).items():
            if seconds is None and name != "answer_seconds":
                raise InvalidInput(f"{name} is None; expected a number of seconds")
            try:
                checked_timeout(seconds)
            except InvalidInput as error:
                raise InvalidInput(f"{name}: {error}") from None
        if not self.fork_seconds < self.host_start_seconds:
            raise InvalidInput(
                f"fork_seconds is {self.fork_seconds}; expected less than host_start_seconds, "
                f"{self.host_start_seconds}"
            )
        if not self.host_silence_seconds < self.lease_seconds:
            raise InvalidInput(
                f"host_silence_seconds is {self.host_silence_seconds}; expected less than "
                f"lease_seconds, {self.lease_seconds}"
            )


DEFAULT_TIME_LIMITS = TimeLimits()


def time_limits_of(
    given: TimeLimits | None = None, timeout_seconds: float | None = None
) -> TimeLimits:
    """Return the limits of a session.

    Args:
        given: to the session; else the defaults.
        timeout_seconds: the limit for an answer, instead of that in the others.
    """
    limits = DEFAULT_TIME_LIMITS if given is None else given
    seconds = checked_timeout(timeout_seconds)
    return limits if seconds is None else replace(limits, answer_seconds=seconds)
