"""What pipeoptim §V-B says about which method is better."""

from __future__ import annotations

from dataclasses import dataclass

# Table IV: highest top-1 accuracy in %, for GNMT BLEU; None where the paper has no figure.
TABLE_IV_METHODS = ("GPipe", "PipeDream", "2BW", "SpecTrain", "XPipe", "PipeOptim")
TABLE_IV: tuple[tuple[str, str, tuple[float | None, ...]], ...] = (
    ("SGDM", "AlexNet, Tiny-ImageNet", (51.93, 43.99, 45.00, 50.14, 39.24, 49.23)),
    ("SGDM", "ResNet-101, Tiny-ImageNet", (67.64, 67.72, 67.47, 67.81, 67.22, 67.84)),
    ("SGDM", "Inception-V3, Tiny-ImageNet", (56.56, 56.88, 56.98, 57.13, 56.32, 57.37)),
    ("AdamW", "Residual LSTM, IMDb", (85.65, 84.82, 85.13, None, 86.20, 86.38)),
    ("AdamW", "VGG-16, CIFAR-100", (67.05, 66.61, 66.66, None, 67.22, 67.91)),
    ("AdamW", "GoogleNet, CIFAR-100", (73.91, 74.58, 74.64, None, 75.09, 74.73)),
    ("Adam", "Residual LSTM, IMDb", (85.64, 85.52, 85.48, None, 86.57, 85.52)),
    ("Adam", "GNMT-8, WMT16 (BLEU)", (21.22, 21.04, 21.03, None, 21.06, 21.29)),
    ("Adam", "GNMT-16, WMT16 (BLEU)", (21.32, 21.44, 21.42, None, 21.55, 21.65)),
)


@dataclass(frozen=True)
class Ordering:
    """A statement of the paper: ``first`` is better than ``second``, or about as good.

    Attributes:
        text: the statement as the report shows it.
        optimizer: for which the paper makes it.
        alike: whether the two are said to be about equally good.
    """

    text: str
    optimizer: str
    first: str
    second: str
    alike: bool = False


ORDERINGS = (
    Ordering("PipeOptim ≥ PipeDream, SGDM", "sgd", "PipeOptim", "PipeDream"),
    Ordering("PipeOptim ≥ 2BW, SGDM", "sgd", "PipeOptim", "2BW"),
    Ordering("SpecTrain ≈ PipeOptim, SGDM", "sgd", "SpecTrain", "PipeOptim", alike=True),
    # Its accuracy "fluctuates" from model to model, which is to fall behind on some of them.
    Ordering("XPipe falls behind PipeOptim, SGDM", "sgd", "PipeOptim", "XPipe"),
    Ordering("PipeOptim ≥ GPipe, AdamW", "adamw", "PipeOptim", "GPipe"),
    Ordering("XPipe ≈ PipeOptim, Adam", "adam", "XPipe", "PipeOptim", alike=True),
    Ordering("PipeOptim > vanilla, SGDM", "sgd", "PipeOptim", "vanilla"),
    Ordering("PipeOptim > vanilla, Adam", "adam", "PipeOptim", "vanilla"),
    Ordering("PipeOptim > vanilla, AdamW", "adamw", "PipeOptim", "vanilla"),
)
