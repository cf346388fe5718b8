"""A model with every kind of dropout, and with running statistics, in two branches."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.capturing.graph import OpGraph
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task
from drlpp.placement.placement import Placement

BATCH, SAMPLES, WIDTH, WORDS, CLASSES = 8, 40, 8, 20, 5
REFERENCE = ModelReference.named("tests.support.models.regularized:regularized")


class Regularized(nn.Module):
    """Dropout between the layers of an LSTM, in attention, on channels, on weights, on its own."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=3, dropout=0.4, batch_first=True)
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.channels = nn.Dropout1d(0.3)
        self.attention = nn.MultiheadAttention(WIDTH, 2, dropout=0.3, batch_first=True)
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        # No input reaches the numbers of these two.
        kept = F.dropout(torch.ones(WORDS, 1), 0.1, training=self.training)
        words = F.dropout(self.words.weight, 0.1, training=self.training)
        read = F.dropout(F.embedding(tokens, kept * words), 0.1, training=self.training)
        left, _ = self.lstm(read)
        right = self.channels(self.norm(self.conv(read.transpose(1, 2)))).transpose(1, 2)
        joined, _ = self.attention(left, right, right, need_weights=False)
        return self.last(F.dropout(torch.tanh(joined.mean(1)), 0.2, training=self.training))


def regularized() -> Task:
    inputs, targets = samples()
    return Task(Regularized().double(), (inputs[0][:BATCH],), targets[:BATCH], F.cross_entropy)


def samples() -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, WORDS, (SAMPLES, 6), generator=generator)
    return [tokens], torch.arange(SAMPLES) % CLASSES


def branching(graph: OpGraph, *workers: int) -> Placement:
    """The LSTM and what comes before it, the other branch, and what joins them on three workers."""
    lstm = next(operator.id for operator in graph.operators if operator.type == "lstm")
    after = {lstm}
    for edge in graph.edges:
        if edge.source in after:
            after.add(edge.target)
    before = {lstm}
    for edge in reversed(graph.edges):
        if edge.target in before:
            before.add(edge.source)
    return Placement.from_assignment(
        [0 if op.id in before else 2 if op.id in after else 1 for op in graph.operators],
        [workers.index(worker) for worker in range(3)],
    )
