"""The forked model on workers: samples, placements of every shape, and how results are compared."""

import torch

from drlpp.capturing.capture import CapturedModel
from drlpp.placement.placement import Placement, Stage
from drlpp.schedule.method import Method

SAMPLES = 40
POLICIES = {
    "vanilla": Method(policy="vanilla"),
    "stash": Method(policy="stash"),
    "stash-vertical": Method(policy="stash-vertical"),
    "2bw": Method(policy="2bw", accumulate=5),
    "spectrain": Method(policy="spectrain"),
    "xpipe": Method(policy="xpipe"),
    "pipeoptim": Method(policy="pipeoptim"),
    "last-step": Method(policy="last-step"),
}

LIKE_OTHERS = ("vanilla", "stash-vertical", "2bw", "spectrain", "xpipe")
"""Policies whose weights are stored or predicted as those of another one are."""

SHAPES = ("straight", "replicated", "replicated-last", "branching")


def samples() -> tuple[list[torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 20, (SAMPLES, 6), generator=generator)
    targets = torch.randint(0, 5, (SAMPLES,), generator=generator)
    return [tokens], targets


def as_data(
    example_inputs: tuple[torch.Tensor, ...],
) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """96 samples to train on, and 8 held out."""
    del example_inputs
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(0, 20, (104, 6), generator=generator)
    targets = torch.randint(0, 5, (104,), generator=generator)
    return (tokens[:96], targets[:96]), (tokens[96:], targets[96:])


def order(minibatches: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(0, SAMPLES, (minibatches, 8), generator=generator)


def placements(captured: CapturedModel) -> dict[str, Placement]:
    """Straight, replicated and branching placements of the forked model."""
    graph = captured.graph
    kinds = {op.type: op.id for op in graph.operators}
    lstm = kinds["lstm"]
    conv_branch = {
        op.id
        for op in graph.operators
        if op.module in {"conv", "norm"} or (op.type == "relu" and op.id < kinds["dropout"])
    }
    before = {0, 1, 2} - {lstm} - conv_branch
    forked = [
        0 if op.id in before else 1 if op.id == lstm else 2 if op.id in conv_branch else 3
        for op in graph.operators
    ]
    even = [min(4 * op.id // len(graph), 3) for op in graph.operators]
    return of_every_shape(even, forked)


def of_every_shape(even: list[int], branching: list[int]) -> dict[str, Placement]:
    """Placements by name, from the stage of every operator in four even stages, and in branches."""
    return {
        "straight": Placement.from_assignment(even, (0, 1, 2, 3)),
        "replicated": Placement.from_assignment([min(k, 2) for k in even], (0, 0, 1, 2)),
        "replicated-last": Placement.from_assignment([min(k, 1) for k in even], (0, 1, 1, 1)),
        "branching": Placement.from_assignment(branching, (3, 1, 0, 2)),
        "folded": Placement(
            stages=tuple(
                Stage(
                    operators=tuple(op for op, k in enumerate(even) if k == stage),
                    accelerators=(holder,),
                )
                for stage, holder in enumerate((2, 0, 0, 2))
            )
        ),
        "data-parallel": Placement.from_assignment([0] * len(even), (0, 0, 0, 0)),
    }


def largest_difference(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    assert found.keys() == wanted.keys()
    return max(
        ((found[name] - wanted[name]).abs().max() / wanted[name].abs().max().clamp(min=1e-3)).item()
        for name in wanted
        if wanted[name].is_floating_point()
    )
