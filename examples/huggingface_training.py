"""A model of `transformers` trained on a `datasets.Dataset`, without downloading anything.

    pip install 'drlpp[huggingface]'
    python -m examples.huggingface_training

A small BERT learns whether a review praises or complains. The reviews are made up here; with
``load_dataset`` and ``from_pretrained`` in the places that say so, it is a training of your own.
The example shows

1. a model of transformers as a task: called with tensors, it gives the logits
   (``examples/huggingface.py`` has more of them, and says which settings matter);
2. a dataset with tokens in the format of torch, read through a ``DataLoader``, and ``unpack``,
   which makes inputs and targets of the dictionaries that it gives;
3. flushed 1F1B with microbatches: the weights are those of an ordinary training;
4. the trained weights saved as transformers saves them, and loaded by it.

It prints the held-out accuracy of every epoch, and what the model that transformers has loaded
thinks of two sentences. ``--resume`` continues a run that was interrupted.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from drlpp import (
    ClusterSession,
    DRLPPError,
    EpochReport,
    LearningRateSchedule,
    Method,
    ModelReference,
    OptimizerSpec,
    PipelineTrainer,
    PlacementFile,
    PlanningProblem,
    Task,
    TrainerCallbacks,
    Workload,
    plan,
    write_document,
)
from examples.huggingface import Logits

BATCH_SIZE = 32
LENGTH = 12
THINGS = ["food", "room", "service", "view", "film", "book", "music", "weather"]
PRAISE = ["good", "great", "lovely", "excellent", "pleasant"]
COMPLAINTS = ["bad", "awful", "boring", "terrible", "poor"]
GLUE = ["the", "was", "is", "not", "and", "but", "very", "really"]


def make_review(draw: random.Random) -> dict[str, Any]:
    """Make a review and its label: 1 for praise, else 0.

    A review is, for example, ``the food was not bad and the view is really great``.
    """
    praises = draw.random() < 0.5
    parts = []
    for _ in range(draw.choice((1, 2))):
        negated = draw.random() < 0.4
        word = draw.choice(COMPLAINTS if praises == negated else PRAISE)
        how = "not" if negated else draw.choice(("", "very", "really"))
        parts.append(f"the {draw.choice(THINGS)} {draw.choice(('was', 'is'))} {how} {word}")
    return {"text": " and ".join(parts), "labels": int(praises)}


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Make a tokenizer of one token a word; ``AutoTokenizer.from_pretrained`` can replace it."""
    words = ["[PAD]", "[UNK]", *THINGS, *PRAISE, *COMPLAINTS, *GLUE]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=LENGTH
    )


def tokens_of(texts: list[str], tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Return the words' numbers, sentences padded alike, since a pipeline's shapes are fixed."""
    return tokenizer(texts, padding="max_length", truncation=True, return_token_type_ids=False)


def reviews(seed: int, count: int, tokenizer: PreTrainedTokenizerFast) -> Dataset:
    """Return reviews with their tokens, in torch's format; ``load_dataset`` can replace it."""
    draw = random.Random(seed)
    dataset = Dataset.from_list([make_review(draw) for _ in range(count)])
    dataset = dataset.map(lambda batch: tokens_of(batch["text"], tokenizer), batched=True)
    return dataset.with_format("torch", columns=["input_ids", "attention_mask", "labels"])


def make_model() -> BertForSequenceClassification:
    """Make a small BERT; ``from_pretrained`` can replace it."""
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=len(make_tokenizer()),
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=256,
            max_position_embeddings=LENGTH,
            num_labels=2,
        )
    )


def as_called(model: BertForSequenceClassification) -> Logits:
    """Return the model, called with the two tensors it needs; the wrapper shares its weights."""
    return Logits(model, "input_ids", "attention_mask")


def classifier() -> Task:
    """Return the model as DRL-PP takes it, with an example minibatch for its shapes."""
    tokens = torch.ones(BATCH_SIZE, LENGTH, dtype=torch.int64)
    labels = torch.zeros(BATCH_SIZE, dtype=torch.int64)
    return Task(as_called(make_model()), (tokens, tokens), labels, F.cross_entropy, is_correct)


def is_correct(logits: Tensor, labels: Tensor) -> Tensor:
    """Return 1 for every review that is understood, else 0."""
    return (logits.argmax(1) == labels).float()


def unpack(batch: dict[str, Tensor]) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return the model's inputs, in the order of ``classifier``, and the targets."""
    return (batch["input_ids"], batch["attention_mask"]), batch["labels"]


def find_placement(model: ModelReference, workers: int) -> PlacementFile:
    """Return the pipeline that is fastest by what the model's operators cost on the workers."""
    method = Method(schedule="1f1b-flush", policy="sync", microbatches=4)
    optimizer = OptimizerSpec.parse("adamw", lr=0.002)
    with ClusterSession(model, workers=workers, method=method, optimizer=optimizer) as session:
        profile, cluster = session.profile(repeats=5)
    problem = PlanningProblem(Workload.of(profile, method), cluster, replicate=False)
    found = plan("exact", problem)
    return PlacementFile.create(
        model,
        profile.graph,
        found.placement,
        cluster,
        method=method,
        optimizer=optimizer,
        found_by=found.method,
    )


def tell(report: EpochReport) -> None:
    """Print how an epoch went."""
    print(f"epoch {report.epoch:>2}  loss {report.loss:.4f}  accuracy {report.score:.4f}")


def main(
    epochs: Annotated[int, typer.Option(help="How often all reviews are seen.")] = 6,
    minibatches: Annotated[
        int | None, typer.Option(help="Of an epoch, to try it; else all.")
    ] = None,
    workers: Annotated[int, typer.Option(help="To plan a placement for.")] = 2,
    placement: Annotated[
        Path | None, typer.Option(help="A placement.json; else one is planned.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for everything.")] = Path("runs/reviews"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint.")] = False,
) -> None:
    """Train a BERT of transformers on reviews."""
    if placement is None:
        placement = out / "placement.json"
        if not placement.exists():
            reference = ModelReference.named("examples.huggingface_training:classifier")
            write_document(placement, find_placement(reference, workers))

    tokenizer = make_tokenizer()
    trainer = PipelineTrainer(
        placement,
        learning_rate=LearningRateSchedule.parse("linear", end_factor=0.1, total_iters=epochs),
        trust="examples",
        out=out / "training",
        resume=resume,
        observer=TrainerCallbacks(on_epoch=tell),
    )
    print(f"training on {trainer.document.configuration}, {trainer.method}, {trainer.optimizer}")
    result = trainer.fit(
        DataLoader(reviews(0, 1600, tokenizer), BATCH_SIZE, shuffle=True),
        DataLoader(reviews(1, 320, tokenizer), BATCH_SIZE),
        epochs=epochs,
        unpack=unpack,
        minibatches=minibatches,
    )

    # From here on it is transformers, which knows nothing of the wrapper around the model.
    model = make_model()
    as_called(model).load_state_dict(result.state_dict)
    model.save_pretrained(out / "bert")
    bert = BertForSequenceClassification.from_pretrained(out / "bert").eval()
    texts = ["the film was not boring and the music is lovely", "the room was not good"]
    with torch.no_grad():
        logits = bert(**tokenizer(texts, padding=True, return_tensors="pt")).logits
    for text, label in zip(texts, logits.argmax(1).tolist(), strict=True):
        print(f"  {text}: {('a complaint', 'praise')[label]}")
    print(f"saved for from_pretrained: {out / 'bert'}")


if __name__ == "__main__":
    try:
        typer.run(main)
    except DRLPPError as error:
        sys.exit(f"error: {error}")
