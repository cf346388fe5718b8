"""An image model: handwritten digits, from a model in plain PyTorch to its trained weights.

    python -m examples.image_classification

1. ``digit_network`` tells DRL-PP about a model: module, example minibatch, loss, score.
2. ``find_plan`` profiles it on the workers for some seconds and lets a planner cut it.
   ``--placement`` takes another placement instead, such as the one that the agent learns by
   ``python train_agent.py examples.image_classification:digit_network --out runs/agent``.
3. ``PipelineTrainer`` trains it on that placement, from ``DataLoader`` with augmented images.
4. The weights go back into the module, which is evaluated without DRL-PP.

It prints the placement, a line for every epoch, and the module's accuracy on held-out digits.
``tensorboard --logdir runs/digits`` shows the losses and what every worker did. ``--resume`` goes
on with a run that was interrupted.

The digits are scikit-learn's: ``pip install 'drlpp[data]'``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from drlpp import DRLPPError, Method, PipelineTrainer, Task, TrainerCallbacks, plan
from drlpp.io.documents import write_document
from drlpp.models.model_reference import ModelReference
from drlpp.placement.plan import Plan
from drlpp.runtime import EarlyStopping, EpochReport
from drlpp.specs.learning_rate import LearningRateSchedule
from drlpp.specs.optimizer_spec import OptimizerSpec

BATCH_SIZE = 32
OPTIMIZER = OptimizerSpec.parse("sgd", lr=0.05, nesterov=True, weight_decay=5e-4)


class ResidualBlock(nn.Module):
    """Two convolutions and a shortcut. Shapes: ``(batch, channels, height, width)`` to the same."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Add what the convolutions find."""
        found = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(found)))


class DigitNetwork(nn.Module):
    """A small residual network. Shapes: ``(batch, 1, 8, 8)`` to logits ``(batch, 10)``."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1)
        self.fine = nn.Sequential(ResidualBlock(channels), ResidualBlock(channels))
        self.narrow = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
        self.coarse = nn.Sequential(ResidualBlock(2 * channels), ResidualBlock(2 * channels))
        self.head = nn.Linear(2 * channels, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Give a logit for every digit."""
        x = self.narrow(self.fine(F.relu(self.stem(images))))
        return self.head(self.coarse(F.relu(x)).mean((2, 3)))


def is_correct(logits: Tensor, digits: Tensor) -> Tensor:
    """Return 1 for every image that is recognised, else 0: their mean is the accuracy."""
    return (logits.argmax(1) == digits).float()


def digit_network() -> Task:
    """Return the model as DRL-PP takes it. The example minibatch is there for its shapes only."""
    images = torch.randn(BATCH_SIZE, 1, 8, 8)
    digits = torch.randint(10, (BATCH_SIZE,))
    return Task(DigitNetwork(), (images,), digits, F.cross_entropy, is_correct)


class Digits(Dataset):
    """Pairs of an image ``(1, 8, 8)`` and its digit; ``augmented`` images are shifted and noisy."""

    def __init__(self, images: Tensor, digits: Tensor, *, augmented: bool) -> None:
        self.images = images
        self.digits = digits
        self.augmented = augmented

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        if self.augmented:
            # Random numbers of torch, which the trainer seeds anew for every epoch: repeatable.
            down, right = torch.randint(3, (2,)).tolist()
            image = F.pad(image, (1, 1, 1, 1))[:, down : down + 8, right : right + 8]
            image = image + 0.1 * torch.randn_like(image)
        return image, self.digits[index]


def digit_loaders() -> tuple[DataLoader, DataLoader]:
    """Return minibatches to train on, and every fifth image held out."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
    digits = torch.tensor(bunch.target)
    held_out = torch.arange(len(digits)) % 5 == 0
    train = Digits(images[~held_out], digits[~held_out], augmented=True)
    test = Digits(images[held_out], digits[held_out], augmented=False)
    return (
        DataLoader(train, BATCH_SIZE, shuffle=True, drop_last=True),
        DataLoader(test, BATCH_SIZE),
    )


def find_plan(model: ModelReference, workers: int) -> Plan:
    """Return the pipeline that is fastest by what the model's operators cost on the workers."""
    # Passes use predicted weights, so that no worker waits for an update of another.
    method = Method(policy="pipeoptim", clip_norm=5.0)
    # One worker for each stage. Without this a model as small as this one is best replicated.
    return plan(model, workers, method=method, optimizer=OPTIMIZER, replicate=False)


def tell(report: EpochReport) -> None:
    """Print how an epoch went."""
    print(f"epoch {report.epoch:>2}  loss {report.loss:.4f}  accuracy {report.score:.4f}")


def main(
    epochs: Annotated[int, typer.Option(help="How often all images are seen.")] = 15,
    minibatches: Annotated[
        int | None, typer.Option(help="Of an epoch, to try it; else all.")
    ] = None,
    workers: Annotated[int, typer.Option(help="To plan a placement for.")] = 2,
    placement: Annotated[
        Path | None, typer.Option(help="A placement.json; else one is planned.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for everything.")] = Path("runs/digits"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint.")] = False,
) -> None:
    """Train a residual network on handwritten digits."""
    model = ModelReference.named("examples.image_classification:digit_network")
    if placement is None:
        placement = out / "placement.json"
        if not placement.exists():
            write_document(placement, find_plan(model, workers).file())

    train, held_out = digit_loaders()
    trainer = PipelineTrainer(
        placement,
        optimizer=OPTIMIZER,
        learning_rate=LearningRateSchedule.parse("cosineannealing", T_max=epochs, warm_up=20),
        early_stopping=EarlyStopping(patience=5),
        checkpoint_every=100,
        model=model,
        out=out / "training",
        resume=resume,
        observer=TrainerCallbacks(on_epoch=tell),
    )
    print(f"training on {trainer.document.configuration}, {trainer.method}, {trainer.optimizer}")
    result = trainer.fit(train, held_out, epochs=epochs, minibatches=minibatches)

    # From here on it is PyTorch: the module of this file with the weights that were trained.
    network = DigitNetwork()
    network.load_state_dict(result.state_dict)
    network.eval()
    with torch.no_grad():
        correct = torch.cat([is_correct(network(images), digits) for images, digits in held_out])
    print(f"the module recognises {correct.mean():.4f} of {len(correct)} held-out digits")
    print(f"its weights: {result.folder / 'model.pt'}")


if __name__ == "__main__":
    try:
        typer.run(main)
    except DRLPPError as error:
        sys.exit(f"error: {error}")
