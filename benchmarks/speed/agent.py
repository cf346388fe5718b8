"""How long do agents take to sample placements and to learn from them?

    python -m benchmarks.speed agent --document benchmarks/speed/README.md

On one core (torch runs on one thread). Episodes are sampled one at a time, and many in step; an
update is PPO's on as many episodes, four passes over all of them. Models are made up: layers of one
to four operators, on four accelerators. Seconds are the processor's, the fastest of some runs
of the same episodes; of single episodes the mean over 16.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import torch
from gymnasium import spaces
from pandas import DataFrame

from benchmarks.options import DocumentOption, JsonOption
from benchmarks.report import markdown, terminal, write_between
from benchmarks.speed.fastest import fastest_seconds
from drlpp.agents.paper.policy import PlacementPolicy, TrajectoryPolicy
from drlpp.agents.paper.trajectory import Trajectory
from drlpp.agents.paper.update import Batch, evaluate_batch
from drlpp.agents.transfer.context import PlacementContext
from drlpp.agents.transfer.transfer_policy import TransferPolicy
from drlpp.agents.transfer.weights import PRETRAINED
from drlpp.cli.command_line import build_console
from drlpp.costs.synthetic_profiles import generate
from drlpp.costs.workload import Workload
from drlpp.io.formatting import seconds_text
from drlpp.specs.cluster import Link, local_cluster

BEGIN, END = "<!-- agent-speed begin -->", "<!-- agent-speed end -->"
SIZES = (20, 200, 1000)
EPISODES = 64
PASSES = 4
_SINGLES = 16
_ACCELERATORS = 4
_LEAST_SECONDS = 4.0


@dataclass(frozen=True)
class Row:
    """Seconds of one policy on one model.

    Attributes:
        policy: ``PlacementPolicy`` or ``TransferPolicy``.
        operators: of the model.
        choices: of an episode, in the mean.
        one: of sampling one episode, the mean over ``_SINGLES`` of them.
        many: of sampling ``EPISODES`` episodes in step.
        update: of learning from them.
    """

    policy: str
    operators: int
    choices: float
    one: float
    many: float
    update: float


def main(
    document: DocumentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time both policies at 20, 200 and 1,000 operators."""
    torch.set_num_threads(1)
    rows = [
        time_policy(policy, operators)
        for policy in ("PlacementPolicy", "TransferPolicy")
        for operators in SIZES
    ]
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        build_console().print(terminal(table_of(rows), "One core"))
    if document is not None:
        write_between(document, BEGIN, END, markdown(table_of(rows)) + "\n")


def time_policy(name: str, operators: int) -> Row:
    """Time one policy on one model."""
    torch.manual_seed(0)
    policy = _policy(name, operators)
    episodes = policy.sample(EPISODES)
    return Row(
        policy=name,
        operators=operators,
        choices=sum(len(e.walk.decisions) for e in episodes) / EPISODES + _ACCELERATORS,
        one=fastest_seconds(lambda: _sample(policy, _SINGLES, 1), _LEAST_SECONDS) / _SINGLES,
        many=fastest_seconds(lambda: _sample(policy, 1, EPISODES), _LEAST_SECONDS),
        update=fastest_seconds(lambda: update(policy, episodes), _LEAST_SECONDS),
    )


def update(policy: TrajectoryPolicy, trajectories: list[Trajectory]) -> None:
    """Make PPO's update, as ``DRLPP.train`` does it."""
    walks = [trajectory.walk for trajectory in trajectories]
    advantages = torch.randn(len(trajectories))
    batch = Batch(walks, advantages, trajectories, advantages)
    for _ in range(PASSES):
        found = evaluate_batch(batch, policy.evaluate(walks, trajectories), clip_range=0.2)
        loss = found.policy_gradient_loss - 0.01 * found.partitioner_entropy
        policy.optimizer.zero_grad()
        loss.backward()
        policy.optimizer.step()


def _policy(name: str, operators: int) -> TrajectoryPolicy:
    profile = generate("layered", operators, seed=0)
    observations = spaces.Box(0.0, 1.0, (1,))
    actions = spaces.MultiDiscrete([_ACCELERATORS] * (operators + _ACCELERATORS))
    if name == "PlacementPolicy":
        # Learning rates of 0: every run has the same work.
        return PlacementPolicy(observations, actions, lambda _: 0.0, graph=profile.graph)
    cluster = local_cluster(_ACCELERATORS, Link(bandwidth_bytes_per_second=1.25e9))
    return TransferPolicy(
        observations,
        actions,
        lambda _: 0.0,
        graph=profile.graph,
        context=PlacementContext.of_workload(Workload.of(profile), cluster),
        pretrained=PRETRAINED,
    )


def _sample(policy: TrajectoryPolicy, times: int, episodes: int) -> None:
    """Sample always the same episodes: the fastest of different ones would be the shortest."""
    torch.manual_seed(0)
    for _ in range(times):
        policy.sample(episodes)


def table_of(rows: Iterable[Row]) -> DataFrame:
    """Return the rows as text."""
    return DataFrame(
        {
            "policy": row.policy,
            "operators": f"{row.operators:,}",
            "choices of an episode": f"{row.choices:.0f}",
            "sample 1 episode": seconds_text(row.one),
            f"sample {EPISODES} in step": seconds_text(row.many),
            f"update on {EPISODES}": seconds_text(row.update),
        }
        for row in rows
    )
