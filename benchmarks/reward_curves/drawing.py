"""Rewards of several agents side by side, from the TensorBoard files of their runs.

    python -m benchmarks.reward_curves draw tuned=runs/a/tensorboard drl-pp=runs/b/tensorboard \\
        --picture curves.png

Left the mean reward of the placements of each training step, right the best time so far, both
against the distinct placements measured, which are what a run pays for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from numpy.typing import NDArray
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from drlpp.cli.command_line import build_console
from drlpp.errors import InvalidInput


@dataclass(frozen=True)
class RewardCurves:
    """What an agent logged, one entry for each training step; NaN where there was nothing to log.

    A training step is a rollout and the update on it.

    Attributes:
        agent: its name.
        distinct: distinct placements measured so far.
        mean_reward: mean of −ln(seconds) over the measured placements of the rollout.
        baseline: the average reward that advantages are counted from.
        best_seconds: fewest seconds per minibatch so far.
        invalid_share: share of draws that left a partition without an accelerator.
    """

    agent: str
    distinct: NDArray[np.float64]
    mean_reward: NDArray[np.float64]
    baseline: NDArray[np.float64]
    best_seconds: NDArray[np.float64]
    invalid_share: NDArray[np.float64]


def main(
    runs: Annotated[list[str], typer.Argument(help="AGENT=FOLDER, with TensorBoard's files.")],
    picture: Annotated[Path, typer.Option(help="The picture to write.")],
) -> None:
    """Draw the rewards of several agents."""
    curves = []
    for run in runs:
        agent, equals, folder = run.partition("=")
        if not (agent and equals and folder):
            raise InvalidInput(f"run {run!r} is not understood; give it as AGENT=FOLDER")
        curves.append(read_curves(Path(folder), agent))
    save(draw_side_by_side(curves), picture)
    build_console().print(f"written to {picture}")


def read_curves(folder: Path, agent: str) -> RewardCurves:
    """Read the scalars of one run.

    Raises:
        InvalidInput: if there is no run of an agent in ``folder``, or more than one.
    """
    runs = sorted({path.parent for path in folder.rglob("events.out.tfevents*")})
    if len(runs) != 1:
        found = ", ".join(map(str, runs)) or "none"
        raise InvalidInput(f"{folder}: expected one run with TensorBoard's files, found {found}")
    events = EventAccumulator(str(runs[0]), size_guidance={"scalars": 0}).Reload()
    if "placement/distinct" not in events.Tags()["scalars"]:
        raise InvalidInput(f"{runs[0]}: no scalars of an agent, such as placement/distinct")
    # Logged after every rollout, whatever came of it.
    steps = [event.step for event in events.Scalars("placement/distinct")]

    def values(tag: str) -> NDArray[np.float64]:
        logged = events.Scalars(tag) if tag in events.Tags()["scalars"] else []
        by_step = {event.step: event.value for event in logged}
        return np.array([by_step.get(step, np.nan) for step in steps])

    return RewardCurves(
        agent=agent,
        distinct=values("placement/distinct"),
        mean_reward=values("placement/mean_reward"),
        baseline=values("placement/baseline"),
        best_seconds=values("placement/best_seconds"),
        invalid_share=values("placement/invalid_share"),
    )


def draw_side_by_side(curves: Sequence[RewardCurves]) -> Figure:
    """Draw mean rewards on the left, best times on the right."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    rewards, seconds = figure.subplots(1, 2)
    for agent in curves:
        rewards.plot(agent.distinct, agent.mean_reward, linewidth=1, label=agent.agent)
        seconds.step(agent.distinct, agent.best_seconds, where="post", label=agent.agent)
    rewards.set(xlabel="distinct placements measured", ylabel="mean reward −ln(seconds)")
    seconds.set(xlabel="distinct placements measured", ylabel="best time per minibatch")
    seconds.yaxis.set_major_formatter(EngFormatter(unit="s"))
    rewards.legend(fontsize=8)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a picture, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
