"""A model with what is easily got wrong where a model is cut: several inputs, outputs and skips."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task

BATCH, SAMPLES, WIDTH, WORDS, CLASSES = 8, 40, 6, 10, 3
REFERENCE = ModelReference.named("tests.support.models.gathering:gathering")

Outputs = dict[str, Tensor | tuple[Tensor, Tensor]]


class Gathering(nn.Module):
    """Tokens and features in, a dictionary with nested outputs of several places out."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, WIDTH))
        self.register_buffer("offset", torch.linspace(-0.5, 0.5, WIDTH), persistent=False)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.unreached = nn.Linear(WIDTH, WIDTH)
        self.unused = nn.Linear(WIDTH, WIDTH)
        self.tied = nn.Linear(WIDTH, WIDTH)
        self.same = nn.Linear(WIDTH, WIDTH)
        self.same.weight = self.tied.weight
        self.chosen = nn.Embedding(WIDTH, WIDTH)
        self.early = nn.Linear(WIDTH, 1)
        self.joined = nn.Linear(2 * WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor, features: Tensor) -> Outputs:
        read = self.words(tokens).mean(1)
        first = torch.tanh(self.first(features) * self.scale + self.offset)
        early = self.early(first)
        middle = torch.tanh(self.frozen(first + read))
        # The gradient ends here, but what the layer computes goes on.
        middle = middle + self.unreached(middle).detach()
        middle = self.same(torch.tanh(self.tied(middle)))
        # Whole numbers travel from stage to stage as well.
        middle = middle + self.chosen(first.argmax(1)) + first
        joined = torch.sin(self.joined(torch.cat([middle, read], 1)))
        return {
            "classes": self.last(joined + first),
            "values": (early.squeeze(1), joined.square().mean(1)),
            "features": features,
        }


def objective(outputs: Outputs, targets: Tensor) -> Tensor:
    early, joined = outputs["values"]
    wanted = outputs["features"].sum(1)
    loss = F.cross_entropy(outputs["classes"], targets)
    return loss + 0.3 * F.mse_loss(early, wanted) + 0.1 * F.l1_loss(joined, wanted)


def gathering(dtype: str = "float64") -> Task:
    module = Gathering().to(getattr(torch, dtype))
    inputs, targets = samples(dtype)
    return Task(module, tuple(value[:BATCH] for value in inputs), targets[:BATCH], objective)


def samples(dtype: str = "float64") -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, WORDS, (SAMPLES, 4), generator=generator)
    features = torch.randn(SAMPLES, WIDTH, generator=generator, dtype=torch.float64)
    return [tokens, features.to(getattr(torch, dtype))], torch.arange(SAMPLES) % CLASSES
