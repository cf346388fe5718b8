"""Learning a placement within a budget of measurements: one call from memory to trained agent."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from stable_baselines3.common.callbacks import BaseCallback, CallbackList

from drlpp.agents.callbacks import (
    AtomicCheckpointCallback,
    BestPlacementCallback,
    MeasurementBudgetCallback,
)
from drlpp.agents.hyperparameters import AgentHyperparameters
from drlpp.agents.saved_agent import load_agent
from drlpp.cli.tables import seconds_text
from drlpp.envs import Declared, MeasurementMemory, PlacementEnv
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement, Outcome
from drlpp.placement.placement import Placement, Stage

Picture = Callable[[Candidate, Measurement], Figure | None]


def learn_placement(
    memory: MeasurementMemory,
    out: Path,
    *,
    hyperparameters: AgentHyperparameters,
    budget: int,
    seed: int,
    declared: Declared | None = None,
    picture: Picture | None = None,
    console: Console | None = None,
) -> bool:
    """Train drl-pp's agent until ``budget`` distinct placements have been measured.

    A model of a single operator leaves an agent nothing to choose: it is measured as one stage on
    every number of accelerators.

    The agent is saved in ``out/agent.zip`` after every update, and taken up from there if it
    exists; TensorBoard's files are in ``out/tensorboard``. Ctrl-C ends learning cleanly.

    Args:
        memory: measures placements, and holds what has been measured.
        out: folder of the run.
        hyperparameters: of a new agent.
        budget: of distinct placements, those that ``memory`` holds already included.
        seed: of the agent's weights and samples.
        declared: what is known of costs and accelerators, for agents that plan; guessed from sizes
            if left out.
        picture: draws the best placement for TensorBoard; None if it cannot.
        console: for the progress bar.

    Returns:
        False if Ctrl-C ended it before the budget was spent.
    """
    console = console or Console(markup=False, emoji=False)
    if len(memory.graph) == 1:
        console.print(
            "nothing to choose: the model is one operator, which no placement can divide; it is "
            f"measured on 1 to {memory.accelerators} workers"
        )
        return _measure_undivided(memory, budget)
    env = PlacementEnv(memory, declared=declared, budget=budget)
    checkpoint, events = out / "agent.zip", str(out / "tensorboard")
    if checkpoint.exists():
        agent = load_agent(hyperparameters.algorithm, checkpoint, env, tensorboard_log=events)
        # Not the noise of the first rollouts once more.
        agent.set_random_seed((agent.seed or 0) + agent.num_timesteps)
    else:
        agent = hyperparameters.build(env, seed=seed, tensorboard_log=events)
    interrupted = threading.Event()
    progress = ProgressCallback(memory, budget, console, interrupted)
    callbacks = CallbackList(
        [
            BestPlacementCallback(memory, picture),
            progress,
            AtomicCheckpointCallback(checkpoint),
            MeasurementBudgetCallback(memory, budget),
        ]
    )
    try:
        # The budget ends it; this is only a bound that is never reached.
        with _noticing_interrupts(interrupted):
            agent.learn(1_000 * budget, callbacks, tb_log_name="agent", reset_num_timesteps=False)
    except KeyboardInterrupt:
        return False
    finally:
        progress.stop()
    if interrupted.is_set():
        return False
    if memory.distinct < budget:
        console.print(
            f"the agent has settled after {memory.distinct} placements: measuring more has not "
            "helped for long, or it keeps asking for what it knows"
        )
    return True


def _measure_undivided(memory: MeasurementMemory, budget: int) -> bool:
    """Measure the only stage there can be on any number of accelerators; False after Ctrl-C."""
    placements = [
        Placement(stages=(Stage(operators=(0,), accelerators=tuple(range(count))),))
        for count in range(1, memory.accelerators + 1)
    ]
    try:
        memory.measure_together(placements, max(budget - memory.distinct, 0))
    except KeyboardInterrupt:
        return False
    return True


@contextmanager
def _noticing_interrupts(interrupted: threading.Event) -> Iterator[None]:
    """Set ``interrupted`` by Ctrl-C, besides the exception.

    The exception may come up in a callback of a library that ignores it, and would be lost.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def notice(number: int, frame: FrameType | None) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGINT, notice)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


class ProgressCallback(BaseCallback):
    """A bar of measured placements with the best time so far and the time left.

    It ends learning when ``interrupted``.
    """

    def __init__(
        self,
        memory: MeasurementMemory,
        budget: int,
        console: Console,
        interrupted: threading.Event,
    ) -> None:
        super().__init__()
        self._interrupted = interrupted
        self._memory = memory
        self._budget = budget
        self._progress = Progress(
            TextColumn("measured"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("best {task.fields[best]}"),
            TimeElapsedColumn(),
            TextColumn("left {task.fields[left]}"),
            console=console,
        )

    def _on_training_start(self) -> None:
        self._before = self._memory.distinct
        self._begin = time.monotonic()
        self._bar = self._progress.add_task("", total=self._budget, best="–", left="–")
        self._progress.start()
        # A rollout is measured ahead of its steps.
        self._memory.observers.append(self._on_run)
        self._show()

    def _on_run(self, candidate: Candidate, outcome: Outcome) -> None:
        self._show()

    def _on_step(self) -> bool:
        return not self._interrupted.is_set()

    def _show(self) -> None:
        best = self._memory.best()
        text = "–"
        if best is not None:
            text = f"{seconds_text(best[1].seconds_per_minibatch)} ({best[0].configuration})"
        self._progress.update(
            self._bar, completed=self._memory.distinct, best=text, left=self._left()
        )

    def _left(self) -> str:
        measured = self._memory.distinct - self._before
        if not measured:
            return "–"
        each = (time.monotonic() - self._begin) / measured
        minutes, seconds = divmod(round(each * (self._budget - self._memory.distinct)), 60)
        return f"{minutes}:{seconds:02}"

    def stop(self) -> None:
        """End the bar, and give the cursor back."""
        self._progress.stop()
        if self._on_run in self._memory.observers:
            self._memory.observers.remove(self._on_run)
