"""How long a session waits before it gives up: every time limit of the runtime, in one object."""

from __future__ import annotations

from dataclasses import dataclass

from drlpp.errors import InvalidInput
from drlpp.schedule.method import checked_timeout


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
        end_seconds: for a killed process to be gone; less than half of `host_silence_seconds`, so
            that a host can report it.
        orphan_seconds: for a worker whose connection to the controller has ended to find out
            whether the controller has.
        abandoned_seconds: for a controller that dies to give up its folder, which its workers then
            remove.
        link_seconds: for the two ends of a link that is measured to meet, and for one message.
        group_seconds: for the workers of a placement to connect, and for one message; long, since
            the controller watches them.
        host_silence_seconds: silence of another host after which it is lost; shorter failures of
            the network are survived.
        gathering_seconds: for the processes of a launch to find each other.
        handshake_seconds: for a process that connects to prove that it knows the token.
        restart_seconds: for `torchrun` to replace a controller that has ended.
        exit_code_seconds: for `torchrun`'s store to say how the controller has ended.
        launch_seconds: for the controller to say where it listens.

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
    host_silence_seconds: float = 30.0
    gathering_seconds: float = 120.0
    handshake_seconds: float = 5.0
    restart_seconds: float = 20.0
    exit_code_seconds: float = 10.0
    launch_seconds: float = 24 * 3600.0

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
        if not 2 * self.end_seconds < self.host_silence_seconds:
            raise InvalidInput(
                f"end_seconds is {self.end_seconds}; expected less than half of "
                f"host_silence_seconds, {self.host_silence_seconds}"
            )


DEFAULT_TIME_LIMITS = TimeLimits()
