"""Learning a placement within a budget of measurements: one call from memory to trained agent."""

from __future__ import annotations

import io
import json
import signal
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback

from drlpp.agents.guided.guided import GuidedDRLPP
from drlpp.agents.hyperparameters import AgentHyperparameters, GuidedHyperparameters
from drlpp.agents.paper.algorithm import DRLPP
from drlpp.envs import CostPrior, MeasurementMemory, PlacementEnv
from drlpp.envs.measuring.search_file import Confidence
from drlpp.errors import InvalidFile
from drlpp.io.documents import write_atomically
from drlpp.io.formatting import seconds_text
from drlpp.io.progress_lines import TimeLeft, shown
from drlpp.io.run_folder import AGENT_NAME
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement, Outcome
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
    on_confidence: Callable[[Confidence], None] = lambda sure: None,
) -> bool:
    """Train drl-pp's agent until ``budget`` distinct placements have been measured.

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
        on_confidence: called at the end with how sure the agent's search is, if it has one.

    Returns:
        False if Ctrl-C ended it before the budget was spent.
    """
    console = console or Console(markup=False, emoji=False)
    if len(memory.graph) == 1 and not isinstance(hyperparameters, GuidedHyperparameters):
        return _measure_undivided(memory, budget, console)
    env = PlacementEnv(memory, declared=declared, budget=budget)
    checkpoint, events = out / AGENT_NAME, str(out / "tensorboard")
    agent = hyperparameters.build(env, seed=seed, tensorboard_log=events)
    # It may not be the first that measures for this memory.
    agent.num_timesteps = memory.distinct
    if checkpoint.exists():
        take_up(agent, checkpoint)
        # Not the noise of the first rollouts once more.
        agent.set_random_seed(seed + agent.num_timesteps)
    interrupted = threading.Event()
    callbacks = CallbackList(
        [
            ConvertCallback(lambda *_: not interrupted.is_set()),
            AtomicCheckpointCallback(checkpoint),
            MeasurementBudgetCallback(memory, budget),
        ]
    )
    try:
        # The budget ends it; this is only a bound that is never reached.
        with _noticing_interrupts(interrupted), _measuring_shown(memory, budget, console):
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
    if isinstance(agent, GuidedDRLPP) and (sure := agent.confidence()):
        console.print(str(sure))
        on_confidence(sure)
    return True


def _measure_undivided(memory: MeasurementMemory, budget: int, console: Console) -> bool:
    """Measure the only stage there can be on 1 to A accelerators; False after Ctrl-C."""
    console.print(
        "nothing to choose: the model is one operator, which no placement can divide; it is "
        f"measured on 1 to {memory.accelerators} workers"
    )
    stages = (
        Stage(operators=(0,), accelerators=tuple(range(count)))
        for count in range(1, memory.accelerators + 1)
    )
    candidates = [Candidate(Placement(stages=(stage,)), memory.measurer.method) for stage in stages]
    new = [candidate for candidate in candidates if candidate not in memory.outcomes]
    total = min(budget, memory.distinct + len(new))
    try:
        with _measuring_shown(memory, total, console):
            memory.measure_together(new, max(budget - memory.distinct, 0))
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


@contextmanager
def _measuring_shown(memory: MeasurementMemory, budget: int, console: Console) -> Iterator[None]:
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
        with shown(console, "measuring placements") as say:
            yield
    finally:
        memory.observers.remove(on_run)


def take_up(agent: DRLPP, path: Path) -> None:
    """Let a new agent go on where the one of a file stopped.

    It gets its weights and counts. stable-baselines3 keeps what is no JSON as pickles, which may
    name any function to call: none of them is read here. (Its own ``DRLPP.load(path)`` reads them,
    as its users know.)

    Raises:
        InvalidFile: it is not an agent for this model.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            saved = json.loads(archive.read("data"))
        agent.set_parameters(str(path), device=agent.device)
        for name in ("num_timesteps", "_n_updates"):
            setattr(agent, name, int(saved.get(name, 0)))
        baseline = saved.get("baseline")
        agent.baseline = None if baseline is None else float(baseline)
    # Whatever a damaged or hostile file makes the libraries say.
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise InvalidFile(
            f"{path}: not a saved agent for this model ({reason}); delete it to let a new agent "
            "begin with what has been measured"
        ) from None


class MeasurementBudgetCallback(BaseCallback):
    """Stops learning when enough distinct placements have been measured.

    Args:
        memory: of the environment; what it holds from an earlier run counts.
        budget: how many distinct placements may be measured, failed ones included.
        patience: also stop after this many steps without a new one, since a policy that has
            settled asks for the same placements for ever. Steps that asked for what cannot run do
            not count.
    """

    def __init__(
        self, memory: MeasurementMemory, budget: int, patience: int = 500, verbose: int = 0
    ) -> None:
        super().__init__(verbose)
        self.memory = memory
        self.budget = budget
        self.patience = patience
        self._distinct = memory.distinct
        self._steps_without_new = 0

    def _on_training_start(self) -> None:
        self._distinct = self.memory.distinct
        self._steps_without_new = 0

    def _on_step(self) -> bool:
        errors = [info.get("error_type") for info in self.locals["infos"]]
        self._steps_without_new += any(error != "invalid placement" for error in errors)
        if self.memory.distinct > self._distinct:
            self._distinct = self.memory.distinct
            self._steps_without_new = 0
        spent = self.memory.distinct >= self.budget
        return not spent and self._steps_without_new < self.patience


class AtomicCheckpointCallback(BaseCallback):
    """Saves the model after every update, and at the end, over the same file.

    The file is replaced in one step, so that a run that is killed at any moment leaves a whole
    model behind, at most one update old.

    Args:
        path: the file, like ``model.zip``; load it with ``DRLPP.load(path, env)``.
    """

    def __init__(self, path: str | Path, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.path = Path(path)

    def _on_rollout_start(self) -> None:
        self._save()

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self._save()

    def _save(self) -> None:
        content = io.BytesIO()
        self.model.save(content)
        write_atomically(self.path, content.getvalue())
