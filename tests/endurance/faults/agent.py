"""A run of the agent whose controller is killed at a random moment, and what it keeps."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

from drlpp.errors import InvalidFile
from drlpp.placement.measurements_file import Entry, read_measurements
from tests.endurance.faults.leftovers import killed_at_random, unfinished_in
from tests.endurance.faults.trials import Trial

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


class AgentTrials:
    """Short runs of ``train_agent.py`` on a small model, which write everything into ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def trial(self, kind: str, seed: int) -> Trial:
        """Kill the controller while the agent learns; then resume.

        A run continues if every line of its measurements is there afterwards, as it was, and no
        placement was measured twice.

        Raises:
            RuntimeError: the run cannot be begun, or not be resumed.
        """
        chance = random.Random(f"agent {seed}")
        out = self._folder / f"agent-{seed}"
        agent = out.with_suffix(".yaml")
        agent.write_text(ENDLESS)
        command = [sys.executable, _PROGRAM, "--agent", agent, "--out", out, *_OPTIONS]
        first = [str(part) for part in command]
        count = chance.randrange(1, _BUDGET - 1)
        seconds, left = killed_at_random(
            first, out, lambda _said: len(_entries(out)) >= count, _LATEST_SECONDS, chance
        )
        before = _entries(out)
        resumed = subprocess.run(
            [*first, "--resume"],
            cwd=_PROGRAM.parent,
            capture_output=True,
            text=True,
            timeout=_LONGEST_SECONDS,
            check=False,
        )
        if resumed.returncode:
            raise RuntimeError(f"{out.name} did not resume; it said: {resumed.stderr[-500:]}")
        went_on = is_kept(before, _entries(out))
        return Trial(kind, "learning", "", "", seconds, went_on, left + unfinished_in(out))


def is_kept(before: list[Entry], after: list[Entry]) -> bool:
    """Return whether nothing is lost, no candidate measured twice, and the budget is spent."""
    counts = Counter((entry.placement, entry.method) for entry in after)
    return after[: len(before)] == before and set(counts.values()) == {1} and len(counts) >= _BUDGET


def _entries(out: Path) -> list[Entry]:
    try:
        return list(read_measurements(out / "measurements.jsonl")[1])
    except InvalidFile:
        return []
