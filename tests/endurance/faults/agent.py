"""A run of the agent whose controller or worker is killed at a random moment, and what it keeps."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drlpp.errors import InvalidFile
from drlpp.placement.measurement import FailedMeasurement
from drlpp.placement.measurements_file import Entry, read_measurements
from tests.endurance.faults.leftovers import unfinished_in
from tests.endurance.faults.trials import Trial
from tests.support.processes import descendants, wait_until_gone, workers_of

_PROGRAM = Path(__file__).parents[2] / "train_agent.py"
_BUDGET = 12
ENDLESS = "kind: guided-hyperparameters\nversion: 1\ngain: 0.0\ndraws: 4\nevaluations: 64\n"
"""An agent that does not end before its budget."""

_LATEST_SECONDS = 0.3
_LONGEST_SECONDS = 300.0
_POLL_SECONDS = 0.02


class AgentTrials:
    """Short runs of ``train_agent.py`` on a small model.

    Args:
        folder: for everything that is written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def trial(self, victim: str, seed: int) -> Trial:
        """Kill the "controller" or a worker ("killed") while the agent learns; then resume.

        A run continues if every line of its measurements is there afterwards, as it was, and no
        placement was measured twice.

        Raises:
            RuntimeError: the run cannot be begun, or not be ended.
        """
        chance = random.Random(f"agent {victim} {seed}")
        out = self._folder / f"agent-{victim}-{seed}"
        temporary = self._folder / f"agent-temporary-{victim}-{seed}"
        temporary.mkdir()
        after = chance.randrange(1, _BUDGET - 1)
        with _running(out, temporary) as run:
            _wait_for_entries(run, out, after)
            time.sleep(chance.uniform(0, _LATEST_SECONDS))
            family = descendants(run.pid)
            begin = time.perf_counter()
            if victim == "controller":
                run.kill()
                run.wait()
            else:
                os.kill(chance.choice(workers_of(run.pid)), signal.SIGKILL)
            before = _entries(out)
            run.wait(_LONGEST_SECONDS)
        left = wait_until_gone(family, temporary)
        seconds = time.perf_counter() - begin
        if run.returncode:
            with _running(out, temporary, "--resume") as resumed:
                resumed.wait(_LONGEST_SECONDS)
            if resumed.returncode:
                raise RuntimeError(f"{out.name} did not resume; it said: {_last_words(out)}")
        left += unfinished_in(out)
        entries = _entries(out)
        failed = [e.outcome for e in entries if isinstance(e.outcome, FailedMeasurement)]
        failure, reason = (failed[0].failure, failed[0].reason) if failed else ("", "")
        went_on = len(failed) <= 1 and is_kept(before, entries)
        return Trial(victim, "learning", failure, reason, seconds, went_on, left)


def is_kept(before: list[Entry], after: list[Entry]) -> bool:
    """Return whether nothing is lost, no candidate measured twice, and the budget is spent."""
    counts = Counter((entry.placement, entry.method) for entry in after)
    return after[: len(before)] == before and set(counts.values()) == {1} and len(counts) >= _BUDGET


@contextmanager
def _running(out: Path, temporary: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start the program, and kill it at the end of the block if it still runs."""
    agent = out.with_suffix(".yaml")
    agent.write_text(ENDLESS)
    arguments = {
        "--agent": agent,
        "--model": "tests.support.models.small:perceptron",
        "--workers": 2,
        "--minibatches": 4,
        "--repetitions": 1,
        "--budget": _BUDGET,
        "--finalists": 2,
        "--rounds": 2,
        "--out": out,
    }
    words = [str(word) for pair in arguments.items() for word in pair]
    with _log_of(out).open("wb") as log:
        run = subprocess.Popen(
            [sys.executable, str(_PROGRAM), *words, *more],
            cwd=_PROGRAM.parent,
            env={**os.environ, "TMPDIR": str(temporary)},
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
    try:
        yield run
    finally:
        run.kill()
        run.wait()


def _log_of(out: Path) -> Path:
    """Return the path of the program's errors: next to its folder, which it wants empty."""
    return out.with_suffix(".log")


def _last_words(out: Path) -> str:
    lines = _log_of(out).read_text(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "nothing")


def _entries(out: Path) -> list[Entry]:
    try:
        _, entries = read_measurements(out / "measurements.jsonl")
    except InvalidFile:
        return []
    return list(entries)


def _wait_for_entries(run: subprocess.Popen[bytes], out: Path, count: int) -> None:
    deadline = time.monotonic() + _LONGEST_SECONDS
    while len(_entries(out)) < count:
        if run.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(
                f"{out.name} did not measure {count} placements; it said: {_last_words(out)}"
            )
        time.sleep(_POLL_SECONDS)
