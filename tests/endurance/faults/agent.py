"""A run of the agent whose controller is killed at a random moment, and what it keeps."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drlpp.errors import InvalidFile
from drlpp.placement.measurements_file import Entry, read_measurements
from tests.endurance.faults.leftovers import unfinished_in
from tests.endurance.faults.trials import Trial
from tests.support.processes import descendants, wait_until_gone

_PROGRAM = Path(__file__).parents[3] / "train_agent.py"
_BUDGET = 12
ENDLESS = "kind: guided-hyperparameters\nversion: 1\ngain: 0.0\ndraws: 4\nevaluations: 64\n"
"""An agent that does not end before its budget."""

_OPTIONS = (
    *("--model", "tests.support.models.small:perceptron", "--workers", "2", "--budget", _BUDGET),
    *("--minibatches", "4", "--repetitions", "1", "--finalists", "2", "--rounds", "2"),
)
_LATEST_SECONDS = 0.3
_LONGEST_SECONDS = 300.0
_POLL_SECONDS = 0.02


class AgentTrials:
    """Short runs of ``train_agent.py`` on a small model, which write everything into ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def trial(self, kind: str, seed: int) -> Trial:
        """Kill the controller while the agent learns; then resume.

        A run continues if every line of its measurements is there afterwards, as it was, and no
        placement was measured twice.

        Raises:
            RuntimeError: the run cannot be begun, or not be ended.
        """
        chance = random.Random(f"agent {seed}")
        out = self._folder / f"agent-{seed}"
        temporary = self._folder / f"agent-temporary-{seed}"
        temporary.mkdir()
        with _running(out, temporary) as run:
            _wait_for_entries(run, out, chance.randrange(1, _BUDGET - 1))
            time.sleep(chance.uniform(0, _LATEST_SECONDS))
            family = descendants(run.pid)
            begin = time.perf_counter()
        before = _entries(out)
        left = wait_until_gone(family, temporary)
        seconds = time.perf_counter() - begin
        with _running(out, temporary, "--resume") as resumed:
            resumed.wait(_LONGEST_SECONDS)
        if resumed.returncode:
            raise RuntimeError(f"{out.name} did not resume; it said: {_last_words(out)}")
        left += unfinished_in(out)
        went_on = is_kept(before, _entries(out))
        return Trial(kind, "learning", "", "", seconds, went_on, left)


def is_kept(before: list[Entry], after: list[Entry]) -> bool:
    """Return whether nothing is lost, no candidate measured twice, and the budget is spent."""
    counts = Counter((entry.placement, entry.method) for entry in after)
    return after[: len(before)] == before and set(counts.values()) == {1} and len(counts) >= _BUDGET


@contextmanager
def _running(out: Path, temporary: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start the program, and kill it at the end of the block if it still runs."""
    agent = out.with_suffix(".yaml")
    agent.write_text(ENDLESS)
    arguments = ("--agent", agent, "--out", out, *_OPTIONS, *more)
    # Its errors go next to its folder, which it wants empty.
    with out.with_suffix(".log").open("wb") as log:
        run = subprocess.Popen(
            [sys.executable, str(_PROGRAM), *map(str, arguments)],
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


def _last_words(out: Path) -> str:
    lines = out.with_suffix(".log").read_text(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "nothing")


def _entries(out: Path) -> list[Entry]:
    try:
        return list(read_measurements(out / "measurements.jsonl")[1])
    except InvalidFile:
        return []


def _wait_for_entries(run: subprocess.Popen[bytes], out: Path, count: int) -> None:
    deadline = time.monotonic() + _LONGEST_SECONDS
    while len(_entries(out)) < count:
        if run.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(
                f"{out.name} did not measure {count} placements; it said: {_last_words(out)}"
            )
        time.sleep(_POLL_SECONDS)
