"""The worker processes: starting, commanding, watching and replacing them."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection as mp_connection
from multiprocessing import util
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import torch.distributed as dist

from drlpp import errors
from drlpp.errors import TrialTimeout, WorkerLost
from drlpp.runtime.channel import Channel
from drlpp.runtime.commands import Answer, Command, Failed, Progress, Stop
from drlpp.runtime.emulation import cores_for
from drlpp.runtime.store import new_token, open_store
from drlpp.runtime.worker import worker_main

_ADDRESS = "127.0.0.1"
_GRACE_SECONDS = 0.5


class WorkerPool:
    """Worker processes on this machine, numbered from 0.

    Workers are forked from a server process that has torch loaded already, so replacing them
    costs a fraction of a second. After any failure all of them are replaced, because a
    communication group cannot be repaired; ``generation`` counts the sets of workers so far, and
    ``longest_silence_seconds`` is the longest time without a word while a command was carried out.

    Args:
        speeds: of every worker, relative to this machine's; slower ones sleep after every pass.
        folder: for the files that commands name, and for long messages.
    """

    def __init__(self, speeds: Sequence[float], folder: str) -> None:
        self.size = len(speeds)
        self._speeds = speeds
        self._cores = cores_for(speeds)
        self.folder = Path(folder)
        self.generation = 0
        self.longest_silence_seconds = 0.0
        self._context = multiprocessing.get_context("forkserver")
        # torch.optim imports torch._dynamo when the first optimizer is built, which takes a second.
        self._context.set_forkserver_preload(["drlpp.runtime.worker", "torch._dynamo"])
        self._processes: list[ForkServerProcess] = []
        self._channels: list[Channel] = []
        self._store: dist.TCPStore | None = None

    @property
    def process_ids(self) -> list[int]:
        """Of the workers that run now."""
        return [process.pid for process in self._processes if process.pid is not None]

    def start(self) -> None:
        """Start the workers, unless they run; if one has died in the meantime, replace them."""
        if self._processes and all(process.is_alive() for process in self._processes):
            return
        self.kill()
        # Made before the first worker, so that all know its name and can remove it.
        util.get_temp_dir()
        self._store = open_store(_ADDRESS)
        token = new_token()
        for worker in range(self.size):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(
                target=worker_main,
                args=(
                    worker,
                    Channel(theirs, str(self.folder)),
                    (_ADDRESS, self._store.port, token),
                    self._speeds[worker],
                    self._cores[worker],
                ),
                name=f"drlpp-worker-{worker}",
                daemon=True,
            )
            with _main_module_left_out():
                process.start()
            theirs.close()
            self._processes.append(process)
            self._channels.append(Channel(ours, str(self.folder)))
        self.generation += 1

    def command(
        self,
        commands: Mapping[int, Command],
        timeout_seconds: float,
        on_progress: Callable[[int], None] | None = None,
    ) -> dict[int, Answer]:
        """Give workers their commands and wait for all answers.

        Args:
            commands: by worker.
            timeout_seconds: without any word from a worker after which the trial counts as hung.
            on_progress: called with the minibatches that the last stage's weights contain so far.

        Raises:
            RunFailure: a worker was lost, failed, or did not answer; none is left after that.
        """
        try:
            self._raise_if_lost()
            for worker, command in commands.items():
                with suppress(BrokenPipeError):
                    self._channels[worker].send(command)
            return self._wait_for_answers(set(commands), timeout_seconds, on_progress)
        except BaseException:
            self.kill()
            raise

    def _wait_for_answers(
        self, waiting: set[int], timeout_seconds: float, on_progress: Callable[[int], None] | None
    ) -> dict[int, Answer]:
        answers: dict[int, Answer] = {}
        last_word = time.monotonic()
        while waiting:
            pipes = {self._channels[worker].connection: worker for worker in waiting}
            sentinels = [process.sentinel for process in self._processes]
            ready = mp_connection.wait([*pipes, *sentinels], timeout_seconds)
            if not ready:
                raise TrialTimeout(
                    f"workers {sorted(waiting)} did not answer within {timeout_seconds:.0f} s"
                )
            silence = time.monotonic() - last_word
            self.longest_silence_seconds = max(self.longest_silence_seconds, silence)
            last_word += silence
            for worker in [pipes[pipe] for pipe in ready if pipe in pipes]:
                try:
                    answer = self._channels[worker].receive()
                except (EOFError, ConnectionResetError):
                    continue
                if isinstance(answer, Failed):
                    self._raise_if_lost(_GRACE_SECONDS)
                    raise getattr(errors, answer.failure)(answer.reason)
                if isinstance(answer, Progress):
                    if on_progress:
                        on_progress(answer.through)
                    continue
                answers[worker] = answer
                waiting.discard(worker)
            if waiting:
                self._raise_if_lost()
        return answers

    def _raise_if_lost(self, grace_seconds: float = 0) -> None:
        """Raise if a worker is dead; others may have noticed it before we did."""
        sentinels = [process.sentinel for process in self._processes]
        mp_connection.wait(sentinels, grace_seconds)
        for worker, process in enumerate(self._processes):
            if not process.is_alive():
                raise WorkerLost(f"worker {worker} {_describe_exit(process.exitcode)}")

    def publish(self, file: str) -> None:
        """Give every host its copy of a file that is in the folder here."""
        assert (self.folder / file).exists()

    def fetch(self, worker: int, file: str) -> Path:
        """The file that a worker wrote into the folder of its host."""
        assert worker < self.size
        return self.folder / file

    def kill(self) -> None:
        """End all workers at once."""
        for process in self._processes:
            process.kill()
        self._forget()

    def close(self) -> None:
        """Ask the workers to end, and kill those that do not."""
        for channel in self._channels:
            with suppress(OSError):
                channel.send(Stop())
        for process in self._processes:
            process.join(_GRACE_SECONDS)
        self.kill()

    def _forget(self) -> None:
        for process in self._processes:
            process.join()
            process.close()
        for channel in self._channels:
            channel.close()
        self._processes, self._channels = [], []
        self._store = None


def _describe_exit(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


@contextmanager
def _main_module_left_out() -> Iterator[None]:
    """Keep multiprocessing from running the user's main script again in every worker.

    Workers need nothing of it, and it may lack the ``if __name__ == "__main__"`` that would
    otherwise be required.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
