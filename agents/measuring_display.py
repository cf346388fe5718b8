"""How many placements have been measured: a line that changes on a terminal, lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from drlpp.envs import MeasurementMemory
from drlpp.io.formatting import seconds_text
from drlpp.io.progress_lines import ProgressLines, TimeLeft
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement, Outcome


@contextmanager
def measuring_shown(memory: MeasurementMemory, budget: int, console: Console) -> Iterator[None]:
    """Show during the block what ``memory`` measures, the best time so far and the time left."""
    before, runs, time_left = memory.distinct, 0, TimeLeft(done=0)

    def on_run(candidate: Candidate, outcome: Outcome) -> None:
        nonlocal runs
        runs += 1
        found, best = f"failed: {getattr(outcome, 'failure', None)}", "–"
        if isinstance(outcome, Measurement):
            found = seconds_text(outcome.seconds_per_minibatch)
        if fastest := memory.best():
            seconds = seconds_text(fastest[1].seconds_per_minibatch)
            best = f"{seconds} ({fastest[0].configuration})"
        # Those that were measured in part count in part.
        measured = max(memory.distinct - before, runs / memory.repetitions)
        say(
            f"measured {memory.distinct} of {budget} placements, last {candidate.configuration}: "
            f"{found}, best {best}, left {time_left.text(measured, budget - before)}"
        )

    # A rollout is measured ahead of its steps.
    memory.observers.append(on_run)
    try:
        with _said(console) as say:
            yield
    finally:
        memory.observers.remove(on_run)


@contextmanager
def _said(console: Console) -> Iterator[Callable[[str], None]]:
    if console.is_terminal:
        with console.status("measuring placements") as status:
            yield lambda line: status.update(Text(line))
        return
    # Console.print flushes.
    lines = ProgressLines(lambda line: console.print(line, soft_wrap=True))
    try:
        yield lines
    finally:
        lines.close()
