"""Learning a placement within a budget of measurements: one call from memory to trained agent."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console
from stable_baselines3.common.callbacks import BaseCallback, CallbackList

from drlpp.agents.callbacks import (
    AtomicCheckpointCallback,
    MeasurementBudgetCallback,
)
from drlpp.agents.guided.guided import GuidedDRLPP
from drlpp.agents.hyperparameters import AgentHyperparameters
from drlpp.agents.measuring_display import measuring_shown
from drlpp.agents.saved_agent import load_agent
from drlpp.envs import CostPrior, MeasurementMemory, PlacementEnv
from drlpp.envs.measuring.search_file import Sureness
from drlpp.io.run_folder import AGENT_NAME
from drlpp.placement.placement import Placement, Stage


def learn_placement(
    memory: MeasurementMemory,
    out: Path,
    *,
    hyperparameters: AgentHyperparameters,
    budget: int,
    seed: int,
    declared: CostPrior | None = None,
    console: Console | None = None,
    on_sure: Callable[[Sureness], None] = lambda sure: None,
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
        console: for the progress bar, or for lines where it is no terminal.
        on_sure: called at the end with how sure the agent's search is, if it has one.

    Returns:
        False if Ctrl-C ended it before the budget was spent.
    """
    console = console or Console(markup=False, emoji=False)
    if len(memory.graph) == 1:
        console.print(
            "nothing to choose: the model is one operator, which no placement can divide; it is "
            f"measured on 1 to {memory.accelerators} workers"
        )
        return _measure_undivided(memory, budget, console)
    env = PlacementEnv(memory, declared=declared, budget=budget)
    checkpoint, events = out / AGENT_NAME, str(out / "tensorboard")
    if checkpoint.exists():
        agent = load_agent(hyperparameters.algorithm, checkpoint, env, tensorboard_log=events)
        # Not the noise of the first rollouts once more.
        agent.set_random_seed((agent.seed or 0) + agent.num_timesteps)
    else:
        agent = hyperparameters.build(env, seed=seed, tensorboard_log=events)
        # It may not be the first that measures for this memory.
        agent.num_timesteps = memory.distinct
    interrupted = threading.Event()
    callbacks = CallbackList(
        [
            InterruptCallback(interrupted),
            AtomicCheckpointCallback(checkpoint),
            MeasurementBudgetCallback(memory, budget),
        ]
    )
    try:
        # The budget ends it; this is only a bound that is never reached.
        with _noticing_interrupts(interrupted), measuring_shown(memory, budget, console):
            agent.learn(1_000 * budget, callbacks, tb_log_name="agent", reset_num_timesteps=False)
    except KeyboardInterrupt:
        return False
    if interrupted.is_set():
        return False
    if memory.distinct < budget:
        console.print(
            f"the agent has settled after {memory.distinct} placements: measuring more has not "
            "helped for long, is not expected to, or it keeps asking for what it knows"
        )
    if isinstance(agent, GuidedDRLPP) and (sure := agent.sureness()):
        console.print(str(sure))
        on_sure(sure)
    return True


def _measure_undivided(memory: MeasurementMemory, budget: int, console: Console) -> bool:
    """Measure the only stage there can be on any number of accelerators; False after Ctrl-C."""
    placements = [
        Placement(stages=(Stage(operators=(0,), accelerators=tuple(range(count))),))
        for count in range(1, memory.accelerators + 1)
    ]
    known = sum(placement.canonical in memory.outcomes for placement in placements)
    total = min(budget, memory.distinct + len(placements) - known)
    try:
        with measuring_shown(memory, total, console):
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


class InterruptCallback(BaseCallback):
    """Ends learning when ``interrupted``."""

    def __init__(self, interrupted: threading.Event) -> None:
        super().__init__()
        self._interrupted = interrupted

    def _on_step(self) -> bool:
        return not self._interrupted.is_set()
