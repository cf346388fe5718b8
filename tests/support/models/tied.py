"""A model whose stages share parameters wherever it is cut: across three stages, and branches."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.capturing.capture import CapturedModel
from drlpp.models.task import Task
from drlpp.placement.placement import Placement
from tests.support.models.forked import of_every_shape

WORDS, WIDTH, SAMPLES, BATCH = 12, 6, 40, 8


class Tied(nn.Module):
    """Words are embedded, guessed halfway and at the end by one weight; two branches share one."""

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.left = nn.Linear(WIDTH, WIDTH)
        self.right = nn.Linear(WIDTH, WIDTH, bias=False)
        self.guess = nn.Linear(WIDTH, WORDS, bias=False)
        self.back = nn.Linear(WORDS, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.right.weight = self.left.weight
        self.guess.weight = self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        stem = torch.tanh(self.stem(self.words(tokens)))
        left, right = torch.tanh(self.left(stem)), torch.sin(self.right(stem))
        joined = left * right + stem
        joined = joined + self.back(torch.tanh(self.guess(joined)))
        return self.head(torch.tanh(self.norm(self.dropout(joined.mean(1)))))


def tied(batch_size: int = BATCH, dtype: str = "float64", dropout: float = 0.2) -> Task:
    """The model as a classification task; float64 makes rounding errors negligible."""
    module = Tied(dropout).to(getattr(torch, dtype))
    tokens = torch.randint(0, WORDS, (batch_size, 5))
    return Task(module, (tokens,), torch.randint(0, WORDS, (batch_size,)), F.cross_entropy)


def samples() -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, WORDS, (SAMPLES, 5), generator=generator)
    return [tokens], torch.randint(0, WORDS, (SAMPLES,), generator=generator)


def order(minibatches: int) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(0, SAMPLES, (minibatches, BATCH), generator=generator)


def placements(captured: CapturedModel) -> dict[str, Placement]:
    """Placements of every shape, by name; in each stages share parameters."""
    branch = {"left": 1, "right": 2}
    names = [op.name.split(".")[0] for op in captured.graph.operators]
    # What follows a branch's linear layer alone belongs to it.
    branching = [branch.get(name, 0 if name in ("words", "stem") else 3) for name in names]
    for op in captured.graph.operators:
        before = captured.graph.predecessors[op.id]
        if op.type in ("tanh", "sin") and len(before) == 1:
            branching[op.id] = branching[before[0]]
    even = [4 * op // len(names) for op in range(len(names))]
    return of_every_shape(even, branching)
