"""drl-pp's figure 5: reward and baseline while the agent learns to place VGG-16.

    python -m benchmarks.reward_curves train    # a few minutes; --help for other models, links

A training step is a rollout and PPO's update on it: with ``--agent drl-pp`` eight partition schemes
with four placements each that can run, and those drawn before them that could not. Placements are
measured in the simulator. Also printed: what was found, how many distinct placements
it took, what the settled policy proposes, and the planners' placements in the same simulator.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from matplotlib.figure import Figure
from rich import box
from rich.table import Table
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks import PROFILES
from benchmarks.reward_curves.drawing import RewardCurves, read_curves, save
from drlpp.agents import DRLPP, hyperparameters_of
from drlpp.cli.command_line import build_console
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.envs import CostPrior, MeasurementMemory, PlacementEnv
from drlpp.io.documents import read_document
from drlpp.io.formatting import seconds_text
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.planners import PLANNERS, PlanningProblem, Space, read_vary
from drlpp.simulator import SimulatedCluster
from drlpp.specs.cluster import Cluster, Link, local_cluster

COMPARED = ("data-parallel", "pipedream", "exact")


def main(
    profile: Annotated[Path, typer.Option(help="Of the model.")] = PROFILES / "vgg16.json",
    accelerators: Annotated[int, typer.Option(min=1, help="Of one host.")] = 4,
    bandwidth: Annotated[float, typer.Option(help="Bytes per second of a link.")] = 1.25e9,
    steps: Annotated[int, typer.Option(min=1, help="Training steps; figure 5 has 600.")] = 600,
    agent: Annotated[str, typer.Option(help="A name, or a YAML file.")] = "drl-pp",
    vary: Annotated[
        str, typer.Option(help="What it may choose with the placement, as drlpp learn --vary.")
    ] = "none",
    seed: Annotated[int, typer.Option(min=0, help="Of the agent.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder of TensorBoard's files.")] = Path(
        "runs/training-curve"
    ),
    picture: Annotated[Path, typer.Option(help="The picture to write.")] = Path(
        "docs/figures/training-curve.png"
    ),
) -> None:
    """Train an agent in the simulator and draw its curve."""
    model = read_document(profile, Profile)
    cluster = local_cluster(accelerators, Link(bandwidth_bytes_per_second=bandwidth))
    measurer = SimulatedCluster(model, cluster)
    planned = plan(measurer, model, cluster)
    varied = read_vary(vary)
    space = Space(measurer.method, varied, folds=False) if varied else None
    declared = CostPrior.of(model, cluster, measurer.method, space=space)
    env = PlacementEnv(MeasurementMemory(measurer), declared=declared)
    learner = hyperparameters_of(agent).build(env, seed=seed, tensorboard_log=str(out))
    console = build_console()
    begin = time.perf_counter()
    with console.status("training"):
        learner.learn(10**9, callback=TrainingSteps(steps), tb_log_name="agent")
    wall_seconds = time.perf_counter() - begin
    assert learner.logger.dir is not None
    curves = read_curves(Path(learner.logger.dir), agent)
    title = f"{profile.stem}, {accelerators} accelerators, {bandwidth / 1e6:,.0f} MB/s, {agent}"
    save(draw(curves, planned, title), picture)
    console.print(
        f"{title}: {len(curves.distinct)} training steps in {wall_seconds:.0f} s, "
        f"{learner.num_timesteps:,} placements drawn, {env.summary.distinct:,} distinct ones "
        f"measured; in the last 20 steps the mean reward was "
        f"{np.nanmean(curves.mean_reward[-20:]):.3f}, and {curves.invalid_share[-20:].mean():.1%} "
        f"of the draws were invalid; written to {picture}"
    )
    console.print(table_of(env, learner, planned))


class TrainingSteps(BaseCallback):
    """Ends learning after ``steps`` rollouts and updates, at the next one's first placement."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._left = steps

    def _on_rollout_start(self) -> None:
        self._left -= 1

    def _on_step(self) -> bool:
        return self._left >= 0


def plan(
    measurer: SimulatedCluster, profile: Profile, cluster: Cluster
) -> dict[str, tuple[Placement, float]]:
    """Return the planners' placements and seconds per minibatch, measured as the agent's are."""
    problem = PlanningProblem(Workload.of(profile), cluster)
    found = {}
    for name in COMPARED:
        placement = PLANNERS[name](problem).placement
        outcome = measurer.measure(placement)
        assert isinstance(outcome, Measurement)
        found[name] = (placement, outcome.seconds_per_minibatch)
    return found


def draw(curves: RewardCurves, planned: dict[str, tuple[Placement, float]], title: str) -> Figure:
    """Draw reward and baseline as figure 5 has them, with the planners' rewards as lines."""
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.add_subplot()
    steps = np.arange(1, len(curves.distinct) + 1)
    axes.plot(steps, curves.mean_reward, linewidth=0.8, color="tab:blue", label="reward")
    axes.plot(steps, curves.baseline, linewidth=1.5, color="tab:orange", label="baseline")
    for (name, (placement, seconds)), style in zip(planned.items(), (":", "-.", "--"), strict=True):
        label = f"{name}, {placement.configuration}"
        axes.axhline(-np.log(seconds), color="grey", linewidth=1, linestyle=style, label=label)
    axes.set_title(title, loc="left", fontsize=10)
    axes.set(xlabel="training step", ylabel="reward −ln(seconds per minibatch)")
    axes.legend(fontsize=8)
    return figure


def table_of(
    env: PlacementEnv, learner: DRLPP, planned: dict[str, tuple[Placement, float]]
) -> Table:
    """Return a table of the agent's and planners' placements, with gaps to the exact planner's."""
    table = Table("placement", "stages", "time per minibatch", "gap to exact", box=box.SIMPLE_HEAD)
    optimum = planned["exact"][1]

    def add(name: str, configuration: str, seconds: float) -> None:
        gap = f"{seconds / optimum - 1:+.1%}"
        table.add_row(name, configuration, seconds_text(seconds), gap)

    best = env.memory.best()
    if best is not None:
        found = best[0]
        unusual = found.method.unlike(env.memory.measurer.method, len(found.placement.stages))
        add("best found", ", ".join([found.configuration, *unusual]), best[1].seconds_per_minibatch)
    action, _ = learner.predict(np.zeros(1, np.float32), deterministic=True)
    info = env.step(action)[4]
    if "seconds" in info:
        add("likeliest of the policy", info["configuration"], info["seconds"])
    else:
        table.add_row("likeliest of the policy", info["error_type"], "–", "–")
    for name, (placement, seconds) in planned.items():
        add(name, placement.configuration, seconds)
    return table
