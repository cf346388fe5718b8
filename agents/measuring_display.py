"""How many placements have been measured: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from drlpp.envs import MeasurementMemory
from drlpp.io.formatting import seconds_text
from drlpp.io.progress_lines import ProgressLines, TimeLeft
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement, Outcome


@contextmanager
def measuring_shown(memory: MeasurementMemory, budget: int, console: Console) -> Iterator[None]:
    """Show during the block what ``memory`` measures, the best time so far and the time left."""
    kind = _Bar if console.is_terminal else _Lines
    display = kind(memory, budget, console)
    # A rollout is measured ahead of its steps.
    memory.observers.append(display.on_run)
    try:
        yield
    finally:
        memory.observers.remove(display.on_run)
        display.stop()


class _Estimate:
    """What both displays say, from the runs that they have seen."""

    def __init__(self, memory: MeasurementMemory, budget: int) -> None:
        self.memory = memory
        self.budget = budget
        self._before = memory.distinct
        self._runs = 0
        self._time_left = TimeLeft(done=0)

    def count(self) -> None:
        """Take note of a run."""
        self._runs += 1

    @property
    def best(self) -> str:
        """The fewest seconds so far, and where."""
        best = self.memory.best()
        if best is None:
            return "–"
        return f"{seconds_text(best[1].seconds_per_minibatch)} ({best[0].configuration})"

    @property
    def left(self) -> str:
        """The time until the budget is spent, if placements take as long as before."""
        # Those that were measured in part count in part.
        measured = max(self.memory.distinct - self._before, self._runs / self.memory.repetitions)
        return self._time_left.text(measured, self.budget - self._before)


class _Bar:
    def __init__(self, memory: MeasurementMemory, budget: int, console: Console) -> None:
        self._estimate = _Estimate(memory, budget)
        self._progress = Progress(
            TextColumn("measured"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("best {task.fields[best]}"),
            TimeElapsedColumn(),
            TextColumn("left {task.fields[left]}"),
            console=console,
        )
        self._bar = self._progress.add_task("", total=budget, best="–", left="–")
        self._progress.start()
        self._show()

    def on_run(self, candidate: Candidate, outcome: Outcome) -> None:
        self._estimate.count()
        self._show()

    def _show(self) -> None:
        estimate = self._estimate
        self._progress.update(
            self._bar,
            completed=estimate.memory.distinct,
            best=estimate.best,
            left=estimate.left,
        )

    def stop(self) -> None:
        """Give the cursor back."""
        self._progress.stop()


class _Lines:
    def __init__(self, memory: MeasurementMemory, budget: int, console: Console) -> None:
        self._estimate = _Estimate(memory, budget)
        # Console.print flushes.
        self._lines = ProgressLines(lambda line: console.print(line, soft_wrap=True))

    def on_run(self, candidate: Candidate, outcome: Outcome) -> None:
        estimate = self._estimate
        estimate.count()
        found = (
            seconds_text(outcome.seconds_per_minibatch)
            if isinstance(outcome, Measurement)
            else f"failed: {outcome.failure}"
        )
        self._lines(
            f"measured {estimate.memory.distinct} of {estimate.budget} placements, "
            f"last {candidate.configuration}: {found}, best {estimate.best}, left {estimate.left}"
        )

    def stop(self) -> None:
        """Print how it ended."""
        self._lines.close()
