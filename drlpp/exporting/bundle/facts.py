"""What a bundle says of itself, in ``facts.json``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).parent

Spec = tuple[tuple[int, ...], str]
"""Shape and type, torch's name without the prefix, of a tensor for one microbatch."""


@dataclass(frozen=True)
class Facts:
    """A bundle.

    Attributes:
        torch: the version that it was made for.
        model: where the model came from.
        minibatches: that a step, and its update, takes.
        microbatches: parts of a minibatch.
        batch_size: samples of a minibatch.
        optimizer: a class of ``torch.optim``.
        options: its arguments.
        clip_norm: gradients with a larger norm are scaled down to it; 0 does not clip.
        seed: of dropout.
        inputs: of every stage, the indices of the model's inputs that it reads.
        arrives: of every stage, what the one before sends; of the first one its inputs.
        leaves: of every stage, what it sends to the next; of the last one what the model returns.
        aliases: for every further name of a shared weight the one that the stages have.
        ties: weights that several stages hold copies of, with these stages.
    """

    torch: str
    model: str
    minibatches: int
    microbatches: int
    batch_size: int
    optimizer: str
    options: dict[str, Any]
    clip_norm: float
    seed: int
    inputs: list[list[int]]
    arrives: list[list[Spec]]
    leaves: list[list[Spec]]
    aliases: dict[str, str]
    ties: list[tuple[list[int], list[str]]]

    @property
    def parts(self) -> int:
        """Microbatches of a step."""
        return self.minibatches * self.microbatches

    def write(self, folder: Path) -> None:
        """Write ``facts.json`` into ``folder``."""
        (folder / "facts.json").write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path = FOLDER) -> Facts:
        """Read those of a bundle."""
        return cls(**json.loads((folder / "facts.json").read_text()))

    @property
    def version_note(self) -> str | None:
        """What to say if another torch is installed, whose pipelining may differ."""
        here = str(torch.__version__)
        if here.partition("+")[0] == self.torch.partition("+")[0]:
            return None
        return (
            f"this bundle was made for torch {self.torch}, and this is torch {here}: names of its "
            "pipelining that are not public may have changed; install that version, or export anew"
        )
