"""Text to learn a language model on, without a download: Python's own documentation.

``pydoc_data.topics`` holds what ``help("topic")`` prints, some 460,000 characters of English prose
with examples of code. Its exact text depends on the version of Python.
"""

from __future__ import annotations

from pydoc_data.topics import topics

from benchmarks.deep_models import encode, sequences
from drlpp.specs.data import Data


def topics_text(length: int) -> Data:
    """Return sequences of ``length`` characters; targets are the characters that follow on each.

    The topics are joined in alphabetical order. The last tenth of the text is held out, so no
    held-out sequence overlaps with one that is trained on. Inputs and targets have the shape
    ``(sequences, length)``, int64.
    """
    text = encode("".join(topics[name] for name in sorted(topics)))
    held_out = len(text) // 10
    return Data(train=sequences(text[:-held_out], length), test=sequences(text[-held_out:], length))
