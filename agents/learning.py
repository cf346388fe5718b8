"""Learning a placement within a budget of measurements: one call from memory to trained agent."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from rich.console import Console
from torch.utils.tensorboard import SummaryWriter

from drlpp.agents.guided import GuidedSearch, Searcher
from drlpp.agents.hyperparameters import AgentHyperparameters, Hyperparameters
from drlpp.envs import CostPrior, MeasurementMemory, PlacementEnv
from drlpp.envs.measuring.confidence import Confidence
from drlpp.envs.measuring.memory import finders_text
from drlpp.envs.placement_env import INVALID
from drlpp.errors import InvalidInput
from drlpp.io.files import reporting_disk_errors
from drlpp.io.formatting import seconds_text
from drlpp.io.progress_lines import TimeLeft, shown
from drlpp.io.run_folder import AGENT_NAME
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement, Outcome

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm

_PATIENCE = 500
"""After so many proposals in a row that were known already, a searcher is not asked again."""

_MOST_ROUNDS = 1_000
"""Times the budget: a bound for who keeps proposing what cannot run."""


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
    """Let an agent find placements until ``budget`` distinct ones have been measured.

    An agent that searches is told first what ``memory`` holds. One that trains is saved in
    ``out/agent.zip`` after every update, and taken up from there if it exists. TensorBoard's files
    are in ``out/tensorboard``. Ctrl-C ends learning cleanly.

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

    Raises:
        InvalidInput: an agent of the user's own is none, or proposes what is no candidate; one that
            trains is to choose methods; or the paper's agent has a single operator to place.
    """
    console = console or Console(markup=False, emoji=False)
    if len(memory.graph) == 1 and isinstance(hyperparameters, Hyperparameters):
        raise InvalidInput(
            f"model {memory.graph.model} is one operator, which drl-pp's agent cannot divide; take "
            "--agent guided, which measures it on 1 worker and on more"
        )
    env = PlacementEnv(memory, declared=declared, budget=budget)
    env.declared = env.declared.with_seed(seed)
    if isinstance(hyperparameters, Hyperparameters):
        agent: Searcher | BaseAlgorithm = hyperparameters.build(env, seed=seed)
    else:
        agent = hyperparameters.build(env)
    weighed = env.declared.problem.objective != "seconds"
    space = env.declared.space
    if not isinstance(agent, Searcher) and (weighed or (space and space.vary)):
        raise InvalidInput(
            "actions of an algorithm of stable-baselines3 are placements alone, rewarded by their "
            "seconds; leave out --vary and --objective, or propose candidates (propose and tell)"
        )
    interrupted = threading.Event()
    try:
        with _noticing_interrupts(interrupted), _measuring_shown(memory, budget, console):
            if isinstance(agent, Searcher):
                _search(agent, env, budget, out, interrupted)
            else:
                _train(agent, memory, budget, out, interrupted)
    except KeyboardInterrupt:
        return False
    if interrupted.is_set():
        return False
    if memory.distinct < budget:
        console.print(
            f"the agent has settled after {memory.distinct} placements: measuring more has not "
            "helped for long, is not expected to, or it keeps asking for what it knows"
        )
    if isinstance(agent, GuidedSearch) and (sure := agent.confidence()):
        console.print(str(sure))
        policy = agent.policy is not None
        console.print(finders_text(memory.finders, policy=policy))
        on_confidence(sure)
    return True


def _search(
    agent: Searcher, env: PlacementEnv, budget: int, out: Path, interrupted: threading.Event
) -> None:
    """Measure what a searcher proposes, until the budget is spent or it has settled."""
    memory, known = env.memory, 0
    for candidate, outcome in list(memory.outcomes.items()):
        agent.tell(candidate, outcome)
    # Where stable-baselines3 writes those of an algorithm.
    events = out / "tensorboard" / "agent_0"
    with reporting_disk_errors(events):
        board = SummaryWriter(str(events))
    with board:
        for _ in range(_MOST_ROUNDS * budget):
            if memory.distinct >= budget or known >= _PATIENCE or interrupted.is_set():
                return
            candidates = agent.propose()
            _log(board, agent, memory)
            if not candidates:
                return
            listed = isinstance(candidates, list | tuple)
            if not (listed and all(isinstance(one, Candidate) for one in candidates)):
                raise InvalidInput(
                    f"the agent proposed {candidates!r:.80}; expected a list of Candidates, each a "
                    "placement and a method"
                )
            before = memory.distinct
            memory.measure_together(candidates, budget - before)
            for candidate in candidates:
                if memory.distinct < budget or candidate.canonical in memory.outcomes:
                    outcome = env.outcome(candidate)
                    agent.tell(candidate, outcome)
                    known += getattr(outcome, "failure", None) != INVALID
            known = 0 if memory.distinct > before else known


def _log(board: SummaryWriter, agent: Searcher, memory: MeasurementMemory) -> None:
    """Write what has been measured so far, and what the guided agent expects of more."""
    known = memory.summary
    values: dict[str, float] = {
        "placement/distinct": known.distinct,
        "placement/failed": known.failed,
    }
    if known.best_seconds is not None:
        values["placement/best_seconds"] = known.best_seconds
    if isinstance(agent, GuidedSearch):
        values |= agent.scalars()
        for who, count in Counter(who.partition(" ")[0] for who in memory.finders).items():
            values[f"found_by/{who}"] = count
    with reporting_disk_errors(Path(board.log_dir)):
        for name, value in values.items():
            board.add_scalar(name, value, known.distinct)


def _train(
    agent: BaseAlgorithm,
    memory: MeasurementMemory,
    budget: int,
    out: Path,
    interrupted: threading.Event,
) -> None:
    """Train an algorithm of stable-baselines3 until its steps have spent the budget."""
    from stable_baselines3.common.callbacks import CallbackList, ConvertCallback

    from drlpp.agents.callbacks import (
        AtomicCheckpointCallback,
        MeasurementBudgetCallback,
        take_up,
    )

    checkpoint = out / AGENT_NAME
    agent.tensorboard_log = str(out / "tensorboard")
    # It may not be the first that measures for this memory.
    agent.num_timesteps = memory.distinct
    if checkpoint.exists():
        take_up(agent, checkpoint)
        # Not the noise of the first rollouts once more.
        agent.set_random_seed((agent.seed or 0) + agent.num_timesteps)
    callbacks = CallbackList(
        [
            ConvertCallback(lambda *_: not interrupted.is_set()),
            AtomicCheckpointCallback(checkpoint),
            MeasurementBudgetCallback(memory, budget, _PATIENCE),
        ]
    )
    # The budget ends it; this is only a bound that is never reached.
    steps = _MOST_ROUNDS * budget
    agent.learn(steps, callbacks, tb_log_name="agent", reset_num_timesteps=False)


@contextmanager
def _noticing_interrupts(interrupted: threading.Event) -> Iterator[None]:
    """Set ``interrupted`` by Ctrl-C, whose exception a library's callback may swallow."""
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
    before, runs, time_left = memory.distinct, 0, TimeLeft()
    time_left.text(0, budget)

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
