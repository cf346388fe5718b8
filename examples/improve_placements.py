"""PPO of stable-baselines3, as it is, improves planners' placements in the simulator.

``python -m examples.improve_placements`` trains on 24 made-up problems. For 12 others it prints how
many times as fast as the planners' best placements those are that the policy ends with.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from math import prod
from random import Random

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor
from torch.nn.functional import pad

from benchmarks.made_up import FAMILIES, generate
from drlpp.agents.paper.encoder import GraphEncoder
from drlpp.costs.workload import Workload
from drlpp.envs import PlacementImprove
from drlpp.planners import PlanningProblem
from drlpp.specs.cluster import Link, local_cluster

SIZES = (24, 64, 4)
"""The most operators, edges and accelerators of a problem."""

ROUND = 1024
"""Steps between two updates, after which the policy is evaluated."""


def problems(seeds: Iterable[int]) -> list[PlanningProblem]:
    """Return graphs of 12 to 24 operators on four unequal accelerators, with 8 to 80 Gbit/s."""
    found = []
    for seed in seeds:
        draw = Random(seed)
        profile = generate(draw.choice(list(FAMILIES)), draw.randint(12, 24), seed)
        link = Link(bandwidth_bytes_per_second=10 ** draw.uniform(9, 10), latency_seconds=5e-5)
        cluster = local_cluster(4, link, [draw.choice([1, 1, 0.75, 0.5]) for _ in range(4)])
        found.append(PlanningProblem(Workload.of(profile), cluster))
    return found


class GraphFeatures(BaseFeaturesExtractor):
    """The graph convolutions of drl-pp's agent over the operators; all else as it is."""

    def __init__(self, space: spaces.Dict, units: tuple[int, ...] = (32, 64)) -> None:
        self.others = ("accelerators", "stages", "plan")
        sizes = [prod(space[name].shape or ()) for name in self.others]
        super().__init__(space, 2 * units[-1] + sum(sizes))
        self.encoder = GraphEncoder((space["operators"].shape or ())[1], units)

    def forward(self, seen: dict[str, Tensor]) -> Tensor:
        """Return what policy and critic see."""
        # Edges that a smaller graph does not have join an operator behind the last.
        nodes = pad(seen["operators"], (0, 0, 0, 1))
        graphs, operators, _ = nodes.shape
        first = operators * torch.arange(graphs, device=nodes.device)
        edges = (seen["edges"].long() + first[:, None, None]).flatten(end_dim=1).T
        hidden = self.encoder(nodes.flatten(end_dim=1), torch.cat([edges, edges.flip(0)], dim=1))
        hidden = hidden.view(graphs, operators, -1)
        # The mean of all that are there, and the sum of those that are next to move.
        there, next_ = nodes[..., :1], nodes[..., -1:]
        pooled = [(hidden * there).sum(dim=1) / there.sum(dim=1), (hidden * next_).sum(dim=1)]
        return torch.cat([*pooled, *(seen[name].flatten(1) for name in self.others)], dim=1)


def speedup(model: PPO, env: PlacementImprove) -> float:
    """Return reference / seconds of the placements that a policy ends with, the geometric mean."""
    logs = []
    for number in range(len(env.problems)):
        seen, info = env.reset(options={"problem": number})
        ended = False
        while not ended:
            action, _ = model.predict(seen)
            seen, _, terminated, truncated, info = env.step(action.item())
            ended = terminated or truncated
        logs.append(np.log(info["reference_seconds"] / info["seconds"]))
    return float(np.exp(np.mean(logs)))


def main() -> None:
    """Train, and print the curve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40_960)
    parser.add_argument("--problems", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    env = PlacementImprove(problems(range(given.problems)), sizes=SIZES)
    unseen = problems(range(1000, 1000 + given.problems // 2))
    others = PlacementImprove(unseen, sizes=SIZES)
    model = PPO(
        "MultiInputPolicy",
        env,
        n_steps=ROUND,
        batch_size=128,
        ent_coef=0.01,
        policy_kwargs={"features_extractor_class": GraphFeatures},
        seed=given.seed,
        device="cpu",
    )
    print(f"untrained: {speedup(model, others):.3f} times as fast as the planners' best")
    while model.num_timesteps < given.steps:
        model.learn(ROUND, reset_num_timesteps=False)
        print(f"{model.num_timesteps} steps: {speedup(model, others):.3f}", flush=True)


if __name__ == "__main__":
    main()
