"""Fine-tuning a model of `transformers` from a local folder on a `datasets.Dataset`.

    pip install 'drlpp[huggingface]'
    python -m examples.huggingface_training

A small BERT learns whether a review praises or complains. Nothing is downloaded: the reviews are
made up, and so are the folder with the model and its tokenizer, where there is none yet. With
``--folder`` and ``load_dataset`` it is a training of your own. The example shows

1. ``from_huggingface``: the model and an example of a batch are a task, with the model's own loss;
2. a dataset in torch's format, read through a ``DataLoader``, whose dictionaries are taken apart by
   the names of the model's arguments;
3. flushed 1F1B with microbatches: the weights are those of an ordinary training;
4. checkpoints within an epoch, and ``--resume``;
5. the trained weights saved as transformers saves them, and loaded by it.

It prints the held-out accuracy of every epoch, and what the model that transformers has loaded
thinks of two sentences.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    pipeline,
)

from drlpp import (
    DRLPPError,
    Method,
    PipelineTrainer,
    Task,
    TrainerCallbacks,
    from_huggingface,
    plan,
)
from drlpp.io.documents import write_document
from drlpp.placement.plan import Plan
from drlpp.runtime import EpochReport
from drlpp.specs.learning_rate import LearningRateSchedule
from drlpp.specs.optimizer_spec import OptimizerSpec

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


def make_folder(folder: Path) -> None:
    """Write a small BERT with random weights, and a tokenizer of one token a word."""
    words = ["[PAD]", "[UNK]", *THINGS, *PRAISE, *COMPLAINTS, *GLUE]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=LENGTH
    ).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=LENGTH,
        num_labels=2,
    )
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)


def reviews(seed: int, count: int, tokenizer: PreTrainedTokenizerBase) -> Dataset:
    """Return reviews with their tokens, in torch's format; ``load_dataset`` can replace it.

    Sentences are padded alike, since a pipeline's shapes are fixed.
    """
    draw = random.Random(seed)
    dataset = Dataset.from_list([make_review(draw) for _ in range(count)])
    dataset = dataset.map(
        lambda batch: tokenizer(
            batch["text"],
            padding="max_length",
            truncation=True,
            max_length=LENGTH,
            return_token_type_ids=False,
        ),
        batched=True,
    )
    return dataset.with_format("torch", columns=["input_ids", "attention_mask", "labels"])


def find_plan(task: Task, workers: int) -> Plan:
    """Return the pipeline that is fastest by what the model's operators cost on the workers."""
    method = Method(schedule="1f1b-flush", policy="sync", microbatches=4)
    optimizer = OptimizerSpec.parse("adamw", lr=0.002)
    return plan(task, workers, method=method, optimizer=optimizer, replicate=False)


def tell(report: EpochReport) -> None:
    """Print how an epoch went."""
    print(f"epoch {report.epoch:>2}  loss {report.loss:.4f}  accuracy {report.score:.4f}")


def main(
    epochs: Annotated[int, typer.Option(help="How often all reviews are seen.")] = 6,
    minibatches: Annotated[
        int | None, typer.Option(help="Of an epoch, to try it; else all.")
    ] = None,
    workers: Annotated[int, typer.Option(help="To plan a placement for.")] = 2,
    folder: Annotated[
        Path | None, typer.Option(help="With the model and its tokenizer; else one is made.")
    ] = None,
    placement: Annotated[
        Path | None, typer.Option(help="A placement.json; else one is planned.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for everything.")] = Path("runs/reviews"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint.")] = False,
) -> None:
    """Fine-tune a model of transformers on reviews."""
    if folder is None:
        folder = out / "pretrained"
        if not folder.exists():
            make_folder(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    train = DataLoader(reviews(0, 1600, tokenizer), BATCH_SIZE, shuffle=True)
    held_out = DataLoader(reviews(1, 320, tokenizer), BATCH_SIZE)

    task = from_huggingface(model, next(iter(train)))
    if placement is None:
        placement = out / "placement.json"
        if not placement.exists():
            write_document(placement, find_plan(task, workers).file())
    trainer = PipelineTrainer(
        placement,
        model=task,
        learning_rate=LearningRateSchedule.parse("linear", end_factor=0.1, total_iters=epochs),
        checkpoint_every=20,
        out=out / "training",
        resume=resume,
        observer=TrainerCallbacks(on_epoch=tell),
    )
    print(f"training on {trainer.document.configuration}, {trainer.method}, {trainer.optimizer}")
    result = trainer.fit(train, held_out, epochs=epochs, minibatches=minibatches)

    # From here on it is transformers alone.
    model.load_state_dict(result.state_dict)
    model.save_pretrained(out / "trained")
    tokenizer.save_pretrained(out / "trained")
    classify = pipeline("text-classification", str(out / "trained"), device="cpu")
    texts = ["the film was not boring and the music is lovely", "the room was not good"]
    for text, found in zip(texts, classify(texts), strict=True):
        print(f"  {text}: {'praise' if found['label'] == 'LABEL_1' else 'a complaint'}")
    print(f"saved for from_pretrained: {out / 'trained'}")


if __name__ == "__main__":
    try:
        typer.run(main)
    except DRLPPError as error:
        sys.exit(f"error: {error}")
