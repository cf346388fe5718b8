"""A translation model: dates in words, ``sunday the first of may two thousand five``, to ISO 8601.

    python -m examples.translation

The sentences are made up here, so nothing is downloaded. An encoder of LSTMs reads the words, a
decoder with attention writes the date character by character. The example shows

1. a model with two inputs: the words, and the characters so far (teacher forcing);
2. a placement made by hand, here the encoder on one worker and the decoder on the other;
3. training with PipeDream's weight stashing and Adam, early stopping by the held-out characters;
4. greedy decoding with the trained module in plain PyTorch.

It prints a line for every epoch, the part of the held-out dates that the module translates without
a mistake, and some of them. ``--resume`` continues a run that was interrupted.
"""

from __future__ import annotations

import sys
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from drlpp import (
    ClusterSession,
    DRLPPError,
    Method,
    PipelineTrainer,
    Placement,
    Task,
    TrainerCallbacks,
)
from drlpp.io.documents import write_document
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import FailedMeasurement
from drlpp.placement.placement_file import PlacementFile
from drlpp.runtime import EarlyStopping, EpochReport
from drlpp.specs.cluster import Link, local_cluster
from drlpp.specs.optimizer_spec import OptimizerSpec

BATCH_SIZE = 32
WEEKDAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
MONTHS = ["january", "february", "march", "april", "may", "june", "july", "august"]
MONTHS += ["september", "october", "november", "december"]
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
NUMBERS += ["eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen"]
NUMBERS += ["eighteen", "nineteen"]
TENS = ["", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
ORDINALS = ["zeroth", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"]
ORDINALS += ["ninth", "tenth", "eleventh", "twelfth", "thirteenth", "fourteenth", "fifteenth"]
ORDINALS += ["sixteenth", "seventeenth", "eighteenth", "nineteenth"]

PADDING = "-"
WORDS = [PADDING, "the", "of", "oh", "thousand", "twentieth", "thirtieth"]
WORDS += [*WEEKDAYS, *MONTHS, *NUMBERS, *TENS[2:], *ORDINALS]
WORD_NUMBERS = {word: number for number, word in enumerate(WORDS)}
SENTENCE_LENGTH = 9

CHARACTERS = "0123456789-"
BEGIN = len(CHARACTERS)
DATE_LENGTH = len("2005-05-01")


def number_in_words(number: int) -> str:
    """Write a number below 100 in words."""
    if number < 20:
        return NUMBERS[number]
    tens, ones = divmod(number, 10)
    return f"{TENS[tens]} {NUMBERS[ones]}" if ones else TENS[tens]


def day_in_words(day: int) -> str:
    """Write a day of a month as an ordinal number."""
    if day < 20:
        return ORDINALS[day]
    tens, ones = divmod(day, 10)
    if ones:
        return f"{TENS[tens]} {ORDINALS[ones]}"
    return "twentieth" if tens == 2 else "thirtieth"


def year_in_words(year: int) -> str:
    """Write a year from 1901 to 2099 as it is said."""
    century, rest = divmod(year, 100)
    if year == 2000:
        return "two thousand"
    if 2000 < year < 2010:
        return f"two thousand {NUMBERS[rest]}"
    return f"{number_in_words(century)} {'oh ' if rest < 10 else ''}{number_in_words(rest)}"


def in_words(day: date) -> str:
    """Write a date as a sentence, in one of three forms that depend on the date."""
    month, number = MONTHS[day.month - 1], day_in_words(day.day)
    year, weekday = year_in_words(day.year), WEEKDAYS[day.weekday()]
    return (
        f"the {number} of {month} {year}",
        f"{month} {number} {year}",
        f"{weekday} the {number} of {month} {year}",
    )[day.toordinal() % 3]


def encode_sentence(sentence: str) -> list[int]:
    """Return the numbers of a sentence's words, padded."""
    words = sentence.split()
    words += [PADDING] * (SENTENCE_LENGTH - len(words))
    return [WORD_NUMBERS[word] for word in words]


def decode_date(numbers: Tensor) -> str:
    """Return the characters with these numbers."""
    return "".join((*CHARACTERS, "?")[number] for number in numbers.tolist())


class Translator(nn.Module):
    """Encoder and decoder of LSTMs, with attention between them.

    Shapes: words ``(batch, sentence length)`` and, for every character to predict, the one before
    it ``(batch, date length)``, to logits ``(batch, date length, characters)``.
    """

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.encoder = Encoder(hidden)
        self.decoder = Decoder(hidden)

    def forward(self, words: Tensor, previous: Tensor) -> Tensor:
        """Give the logits of the characters."""
        return self.decoder(previous, self.encoder(words), words == WORD_NUMBERS[PADDING])

    @torch.no_grad()
    def translate(self, words: Tensor) -> Tensor:
        """Choose the most likely character one by one, given those before: greedy decoding."""
        previous = torch.full((len(words), 1), BEGIN)
        for _ in range(DATE_LENGTH):
            logits = self(words, previous)
            previous = torch.cat([previous, logits[:, -1:].argmax(2)], 1)
        return previous[:, 1:]


class Encoder(nn.Module):
    """Two bidirectional LSTMs. Shapes: ``(batch, length)`` to ``(batch, length, hidden)``."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(WORDS), hidden)
        self.lstm = nn.LSTM(hidden, hidden // 2, 2, batch_first=True, bidirectional=True)

    def forward(self, words: Tensor) -> Tensor:
        """Give a state for every word."""
        states, _ = self.lstm(self.embedding(words))
        return states


class Decoder(nn.Module):
    """An LSTM whose every state attends to the states of the encoder."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(CHARACTERS) + 1, hidden)
        self.lstm = nn.LSTM(hidden, hidden, batch_first=True)
        self.query = nn.Linear(hidden, hidden)
        self.join = nn.Linear(2 * hidden, hidden)
        self.head = nn.Linear(hidden, len(CHARACTERS))

    def forward(self, previous: Tensor, states: Tensor, padded: Tensor) -> Tensor:
        """Give the logits of the characters after ``previous``; ``padded`` words are not read."""
        x, _ = self.lstm(self.embedding(previous))
        scores = self.query(x) @ states.transpose(1, 2)
        weights = scores.masked_fill(padded.unsqueeze(1), -1e9).softmax(2)
        return self.head(torch.tanh(self.join(torch.cat([x, weights @ states], 2))))


def character_loss(logits: Tensor, characters: Tensor) -> Tensor:
    """Return the mean cross entropy over all characters."""
    return F.cross_entropy(logits.flatten(0, 1), characters.flatten())


def correct_characters(logits: Tensor, characters: Tensor) -> Tensor:
    """Return for every date the part of its characters that is right."""
    return (logits.argmax(2) == characters).float().mean(1)


def translator() -> Task:
    """Return the model as DRL-PP takes it, with an example minibatch for its shapes."""
    words = torch.randint(len(WORDS), (BATCH_SIZE, SENTENCE_LENGTH))
    characters = torch.randint(len(CHARACTERS), (BATCH_SIZE, DATE_LENGTH))
    inputs = (words, characters)
    return Task(Translator(), inputs, characters, character_loss, correct_characters)


def dates(train: int = 3200, held_out: int = 480) -> tuple[TensorDataset, TensorDataset]:
    """Return different dates from 1901 to 2099: words, previous characters, characters."""
    first, last = date(1901, 1, 1), date(2099, 12, 31)
    shuffled = torch.randperm((last - first).days, generator=torch.Generator().manual_seed(0))
    days = [first + timedelta(days=n) for n in shuffled[: train + held_out].tolist()]
    words = torch.tensor([encode_sentence(in_words(day)) for day in days])
    characters = torch.tensor([[CHARACTERS.index(c) for c in day.isoformat()] for day in days])
    previous = torch.cat([torch.full((len(days), 1), BEGIN), characters[:, :-1]], 1)
    everything = TensorDataset(words, previous, characters)
    return TensorDataset(*everything[:train]), TensorDataset(*everything[train:])


def place_by_hand(model: ModelReference) -> PlacementFile:
    """Place the encoder on worker 0, and everything else on worker 1."""
    # Every backward pass uses the weights of its forward pass, which are kept until then.
    method = Method(policy="stash")
    optimizer = OptimizerSpec.parse("adam", lr=0.003)
    with ClusterSession(model, workers=2, method=method, optimizer=optimizer) as session:
        graph = session.graph
        # A stage for every operator, and a stage for every worker.
        stages = [0 if operator.module.startswith("encoder") else 1 for operator in graph.operators]
        placement = Placement.from_assignment(stages, (0, 1))
        measurement = session.measure(placement, minibatches=20)
    if isinstance(measurement, FailedMeasurement):
        raise SystemExit(f"the placement cannot be run: {measurement.reason}")
    print(f"measured: {1000 * measurement.seconds_per_minibatch:.1f} ms per minibatch")
    return PlacementFile.create(
        model,
        graph,
        placement,
        local_cluster(2, Link(bandwidth_bytes_per_second=1e9)),
        method=method,
        optimizer=optimizer,
        found_by="hand",
        measurement=measurement,
    )


def tell(report: EpochReport) -> None:
    """Print how an epoch went."""
    print(
        f"epoch {report.epoch:>2}  loss {report.loss:.4f}  held-out characters {report.score:.4f}"
    )


def main(
    epochs: Annotated[int, typer.Option(help="How often all dates are seen.")] = 8,
    minibatches: Annotated[
        int | None, typer.Option(help="Of an epoch, to try it; else all.")
    ] = None,
    placement: Annotated[
        Path | None, typer.Option(help="A placement.json; else one is made by hand.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for everything.")] = Path("runs/dates"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint.")] = False,
) -> None:
    """Train a translator of dates."""
    if placement is None:
        placement = out / "placement.json"
        if not placement.exists():
            model = ModelReference.named("examples.translation:translator")
            write_document(placement, place_by_hand(model))

    train, held_out = dates()
    trainer = PipelineTrainer(
        placement,
        early_stopping=EarlyStopping(patience=3),
        model="examples.translation:translator",
        out=out / "training",
        resume=resume,
        observer=TrainerCallbacks(on_epoch=tell),
    )
    print(f"training on {trainer.document.configuration}, {trainer.method}, {trainer.optimizer}")
    result = trainer.fit(
        DataLoader(train, BATCH_SIZE, shuffle=True),
        DataLoader(held_out, BATCH_SIZE),
        epochs=epochs,
        minibatches=minibatches,
    )

    # From here on it is PyTorch. No character is given away now: each comes from those before it.
    module = Translator()
    module.load_state_dict(result.state_dict)
    module.eval()
    words, _, characters = held_out.tensors
    translated = module.translate(words)
    right = (translated == characters).all(1)
    print(f"{right.sum()} of {len(right)} held-out dates are translated without a mistake:")
    for sentence, found in zip(words[:5], translated[:5], strict=True):
        shown = " ".join(WORDS[word] for word in sentence if WORDS[word] != PADDING)
        print(f"  {shown} → {decode_date(found)}")


if __name__ == "__main__":
    try:
        typer.run(main)
    except DRLPPError as error:
        sys.exit(f"error: {error}")
