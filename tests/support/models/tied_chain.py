"""A chain whose word vectors are used on three of its four stages, and the rule for it by hand."""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.capturing.graph import OpGraph
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task
from drlpp.placement.placement import Placement

WORDS, WIDTH, BATCH, STAGES = 12, 6, 8, 4
STAGE_OF = {"words": 0, "stem": 1, "guess": 1, "back": 2, "head": 3}
TIED = {"words": "words", "guess": "words", "head": "words"}
"""Under which name a layer's weight is known, where several layers share it."""


class TiedChain(nn.Module):
    """Words are embedded, guessed halfway and at the end by one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.guess = nn.Linear(WIDTH, WORDS, bias=False)
        self.back = nn.Linear(WORDS, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.guess.weight = self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.tanh(self.stem(self.words(tokens).mean(1)))
        return self.head(torch.tanh(self.back(torch.tanh(self.guess(x)))))


def tied_chain() -> Task:
    """The chain as a classification task in float64."""
    tokens = torch.randint(0, WORDS, (BATCH, 5))
    return Task(TiedChain().double(), (tokens,), torch.randint(0, WORDS, (BATCH,)), F.cross_entropy)


def in_four_stages(graph: OpGraph) -> Placement:
    """Each layer in its stage, and what computes without weights behind the layer before it."""
    stages: list[int] = []
    for operator in graph.operators:
        layer = operator.module.split(".")[0] if operator.module else ""
        stages.append(STAGE_OF.get(layer, stages[-1] if stages else 0))
    return Placement.from_assignment(stages, range(STAGES))


def by_the_rule(
    minibatches: list[tuple[Tensor, Tensor]], *, rate: float, momentum: float, predicts: bool
) -> dict[str, Tensor]:
    """Train as `docs/methods.md` says that four stages do, without stages: SGD, no flush.

    Minibatch t meets, at its forward, version t − s of every weight, with the s of the first stage
    that holds it, 3 − rank. A copy on another stage makes its updates before forwards, each of
    which meets what it met on that first stage, so at a backward it is r updates behind. With
    PipeOptim both passes look ahead, s and r updates, else both use version t − s. The gradients of
    all copies make update t + 1, by their sum.
    """
    start = dict(ModelReference.named(f"{__name__}:tied_chain").build().module.named_parameters())
    names = [*start]
    weights = [{name: start[name].detach() for name in names}]
    moved: list[dict[str, Tensor]] = [{name: torch.zeros_like(start[name]) for name in names}]
    for t, (tokens, targets) in enumerate(minibatches):
        used: defaultdict[str, list[Tensor]] = defaultdict(list)

        def lent(layer: str, kind: str, t: int = t, used: Any = used) -> tuple[Tensor, Tensor]:
            """Return the forward's values, which get the gradient, and the backward's."""
            name = f"{TIED.get(layer, layer)}.{kind}"
            stage, root = STAGE_OF[layer], STAGE_OF[TIED.get(layer, layer)]
            s, r = min(t, STAGES - 1 - root), 0
            if stage != root:
                last_forward = min(t + STAGES - 1 - stage, len(minibatches) - 1)
                r = t - max(0, last_forward - (STAGES - 1 - root))

            def ahead(version: int, updates: int) -> Tensor:
                return weights[version][name] - rate * updates * moved[version][name]

            forward = ahead(t - s, s if predicts else 0).clone().requires_grad_()
            used[name].append(forward)
            return forward, ahead(t - r, r) if predicts else forward.detach()

        x = F.embedding(tokens, lent("words", "weight")[0]).mean(1)
        for layer in ("stem", "guess", "back"):
            x = LinearOfTwoVersions.apply(x, *lent(layer, "weight"))
            if layer != "guess":
                x = x + lent(layer, "bias")[0]
            x = torch.tanh(x)
        logits = LinearOfTwoVersions.apply(x, *lent("head", "weight"))
        F.cross_entropy(logits, targets).backward()
        gradients = {name: torch.stack([u.grad for u in used[name]]).sum(0) for name in names}
        moved.append({name: momentum * moved[-1][name] + gradients[name] for name in names})
        weights.append({name: weights[-1][name] - rate * moved[-1][name] for name in names})
    return weights[-1]


class LinearOfTwoVersions(torch.autograd.Function):
    """x·Wᵀ, whose backward is by another version of W than its forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, in_backward: Tensor) -> Tensor:
        ctx.save_for_backward(x, in_backward)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, in_backward = ctx.saved_tensors
        return gradient @ in_backward, gradient.T @ x, None
