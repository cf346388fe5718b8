"""Text to learn a language model on, without a download: Python's own documentation.

``pydoc_data.topics`` holds what ``help("topic")`` prints, some 460,000 characters of English prose
with examples of code. Its exact text depends on the version of Python.
"""

from __future__ import annotations

from pydoc_data.topics import topics

import torch
from torch import Tensor

from drlpp.specs.data import Data, Samples

VOCABULARY = "\n" + "".join(map(chr, range(ord(" "), ord("~") + 1)))
"""The newline and the 95 printable characters of ASCII; what is not in it is read as ``?``."""

_INDEX = {character: index for index, character in enumerate(VOCABULARY)}


def encode(text: str) -> Tensor:
    """Return the index in ``VOCABULARY`` of every character, shape ``(len(text),)``, int64."""
    unknown = _INDEX["?"]
    return torch.tensor([_INDEX.get(character, unknown) for character in text])


def topics_text(length: int) -> Data:
    """Return sequences of ``length`` characters; targets are the characters that follow on each.

    The topics are joined in alphabetical order. The last tenth of the text is held out, so no
    held-out sequence overlaps with one that is trained on. Inputs and targets have the shape
    ``(sequences, length)``, int64.
    """
    text = encode("".join(topics[name] for name in sorted(topics)))
    held_out = len(text) // 10
    return Data(
        train=_sequences(text[:-held_out], length), test=_sequences(text[-held_out:], length)
    )


def _sequences(text: Tensor, length: int) -> Samples:
    count = (len(text) - 1) // length
    inputs = text[: count * length].view(count, length)
    targets = text[1 : count * length + 1].view(count, length)
    return Samples((inputs,), targets)
