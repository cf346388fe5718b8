"""A Transformer language model that learns to write Python, character by character.

    python -m examples.language_model

The text is the source of some modules of Python's library, which is on every machine. The example
shows

1. a decoder-only Transformer, whose task has a loss and no score;
2. a placement found by measuring: planners make candidates, live workers decide between them;
3. an endless stream of training data, an ``IterableDataset`` that is read while the pipeline runs;
4. AdamW with warm-up and a cosine, without decay of biases and norms; weights predicted by
   PipeOptim, every update of the gradients of two minibatches, clipped;
5. passes in bfloat16, weights and updates in float32;
6. checkpoints within an epoch, and ``--resume``, which continues from the last one bit for bit;
7. sampling from the trained module in plain PyTorch.

It prints what each candidate takes, the held-out perplexity of every epoch (which falls from the 96
of guessing), and some text.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import doctest
import inspect
import math
import string
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from drlpp import (
    ClusterSession,
    DRLPPError,
    Measurement,
    Method,
    PipelineTrainer,
    Task,
    TrainerCallbacks,
)
from drlpp.costs.workload import Workload
from drlpp.io.documents import write_document
from drlpp.models.model_reference import ModelReference
from drlpp.placement.placement_file import PlacementFile
from drlpp.planners import PLANNERS, PlanningProblem
from drlpp.runtime import EpochReport
from drlpp.specs.learning_rate import LearningRateSchedule
from drlpp.specs.optimizer_spec import OptimizerSpec, ParameterGroup

BATCH_SIZE = 16
LENGTH = 64
CHARACTERS = string.printable
SOURCES = (argparse, ast, dataclasses, doctest, inspect, textwrap)

# Every update is of two minibatches. Passes are in bfloat16; weights and updates stay in float32.
METHOD = Method(policy="pipeoptim", accumulate=2, clip_norm=1.0, precision="bfloat16")
UNDECAYED = ParameterGroup.parse("*norm*", "*.bias", "positions", weight_decay=0.0)
OPTIMIZER = OptimizerSpec.parse("adamw", [UNDECAYED], lr=0.003, weight_decay=0.05)


class Attention(nn.Module):
    """Causal self-attention. Shapes: ``(batch, length, hidden)`` to the same."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.read = nn.Linear(hidden, 3 * hidden)
        self.write = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Give for every character what it finds in those before it."""
        query, key, value = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.read(x).chunk(3, 2)
        )
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.write(found.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a feed-forward network, each behind a normalisation and with a shortcut."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, heads)
        self.norm2 = nn.LayerNorm(hidden)
        self.feed_forward = nn.Sequential(
            nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Apply both."""
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class LanguageModel(nn.Module):
    """A decoder-only Transformer.

    Shapes: characters ``(batch, length)``, at most ``LENGTH`` of them, to the logits of the
    character after each, ``(batch, length, characters)``.
    """

    def __init__(self, hidden: int = 64, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(CHARACTERS), hidden)
        self.positions = nn.Parameter(torch.zeros(LENGTH, hidden))
        self.blocks = nn.Sequential(*(Block(hidden, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, len(CHARACTERS))
        nn.init.normal_(self.characters.weight, std=0.1)

    def forward(self, text: Tensor) -> Tensor:
        """Give the logits."""
        x = self.characters(text) + self.positions[: text.shape[1]]
        return self.head(self.norm(self.blocks(x)))

    @torch.no_grad()
    def write(self, beginning: str, count: int, temperature: float = 0.7, seed: int = 0) -> str:
        """Continue a text for ``count`` characters."""
        generator = torch.Generator().manual_seed(seed)
        text = encode(beginning)
        for _ in range(count):
            logits = self(text[-LENGTH:].unsqueeze(0))[0, -1] / temperature
            text = torch.cat([text, logits.softmax(0).multinomial(1, generator=generator)])
        return "".join(CHARACTERS[number] for number in text.tolist())


def character_loss(logits: Tensor, following: Tensor) -> Tensor:
    """Return the mean cross entropy over all characters, the logarithm of the perplexity."""
    return F.cross_entropy(logits.flatten(0, 1), following.flatten())


def language_model() -> Task:
    """Return the model as DRL-PP takes it, with an example minibatch for its shapes."""
    text = torch.randint(len(CHARACTERS), (BATCH_SIZE, LENGTH))
    return Task(LanguageModel(), (text,), text, character_loss)


def encode(text: str) -> Tensor:
    """Return the numbers of the characters that the model knows."""
    return torch.tensor([CHARACTERS.index(c) for c in text if c in CHARACTERS])


class RandomWindows(IterableDataset):
    """Endlessly many pieces of a text, each with the same one character later."""

    def __init__(self, text: Tensor) -> None:
        self.text = text

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            # A random number of torch, which the trainer seeds anew for every epoch: repeatable.
            begin = int(torch.randint(len(self.text) - LENGTH, ()))
            window = self.text[begin : begin + LENGTH + 1]
            yield window[:-1], window[1:]


def text_loaders() -> tuple[DataLoader, DataLoader]:
    """Return random pieces of the text to train on, and its last twentieth held out."""
    text = encode("\n".join(inspect.getsource(module) for module in SOURCES))
    train, held_out = text[: -len(text) // 20], text[-len(text) // 20 :]
    windows = held_out.unfold(0, LENGTH + 1, LENGTH)
    return (
        DataLoader(RandomWindows(train), BATCH_SIZE),
        DataLoader(TensorDataset(windows[:, :-1], windows[:, 1:]), BATCH_SIZE),
    )


def find_placement(model: ModelReference, workers: int) -> PlacementFile:
    """Return the fastest of three planners' placements, by running each of them."""
    candidates = []
    with ClusterSession(model, workers=workers, method=METHOD, optimizer=OPTIMIZER) as session:
        profile, cluster = session.profile(repeats=5)
        problem = PlanningProblem(Workload.of(profile, METHOD), cluster, replicate=False)
        for planner in ("data-parallel", "gpipe", "pipedream"):
            placement = PLANNERS[planner](problem).placement
            outcome = session.measure(placement, minibatches=20)
            if isinstance(outcome, Measurement):
                seconds = outcome.seconds_per_minibatch
                print(f"{planner:<14} {placement.configuration:<6} {1000 * seconds:.1f} ms")
                candidates.append((seconds, planner, placement, outcome))
    _, planner, placement, measurement = min(candidates, key=lambda found: found[0])
    return PlacementFile.create(
        model,
        profile.graph,
        placement,
        cluster,
        method=METHOD,
        optimizer=OPTIMIZER,
        found_by=planner,
        measurement=measurement,
    )


def tell(report: EpochReport) -> None:
    """Print how an epoch went."""
    perplexity = math.exp(report.held_out_loss or math.nan)
    print(f"epoch {report.epoch:>2}  loss {report.loss:.4f}  held-out perplexity {perplexity:.2f}")


def main(
    epochs: Annotated[int, typer.Option(help="Parts of the training, each evaluated.")] = 8,
    minibatches: Annotated[int, typer.Option(help="Of an epoch.")] = 200,
    workers: Annotated[int, typer.Option(help="To find a placement for.")] = 2,
    placement: Annotated[
        Path | None, typer.Option(help="A placement.json; else one is looked for.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for everything.")] = Path("runs/python"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint.")] = False,
) -> None:
    """Train a language model on Python's source."""
    if placement is None:
        placement = out / "placement.json"
        if not placement.exists():
            model = ModelReference.named("examples.language_model:language_model")
            write_document(placement, find_placement(model, workers))

    train, held_out = text_loaders()
    trainer = PipelineTrainer(
        placement,
        learning_rate=LearningRateSchedule.parse(
            "cosineannealing",
            T_max=epochs * minibatches,
            interval="minibatch",
            warm_up=epochs * minibatches // 20,
        ),
        checkpoint_every=20,
        model="examples.language_model:language_model",
        out=out / "training",
        resume=resume,
        observer=TrainerCallbacks(on_epoch=tell),
    )
    print(f"training on {trainer.document.configuration}, {trainer.method}, {trainer.optimizer}")
    # The stream never ends, so the length of an epoch has to be said.
    result = trainer.fit(train, held_out, epochs=epochs, minibatches=minibatches)

    # From here on it is PyTorch: the module of this file with the weights that were trained.
    module = LanguageModel()
    module.load_state_dict(result.state_dict)
    module.eval()
    print(module.write("def ", 300))


if __name__ == "__main__":
    try:
        typer.run(main)
    except DRLPPError as error:
        sys.exit(f"error: {error}")
