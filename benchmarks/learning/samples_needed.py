"""What replays found of a method, for those who multiply it with seconds per minibatch."""

from __future__ import annotations

from drlpp.io.documents import Record

PLAIN = "plain AdamW"
"""The method that is training without a pipeline, whose loss is the one to reach."""


class SamplesNeeded(Record):
    """How many minibatches a method needs to the loss of plain training.

    Attributes:
        task, method: by their names.
        depth: stages of the pipeline.
        target: plain training's held-out loss, with the first seed, at the rate where it ends best.
        minibatches: after which it has that. At another rate it may be there sooner.
        ratio: of the method's minibatches to these, in the mean over seeds; None if it was never
            there.
        deviation: of the ratio over seeds, 0 of a single one.
    """

    task: str
    method: str
    depth: int
    target: float
    minibatches: int
    ratio: float | None
    deviation: float
