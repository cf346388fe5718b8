"""float32 and bfloat16 with the default method: time, memory and held-out loss."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.learning.race_tasks import first_text
from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession
from drlpp.runtime.training.data.samples_in_memory import SamplesInMemory
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec

STAGES = 2
METHODS = {
    "float32": Method(policy="pipeoptim"),
    "float32, recomputing": Method(policy="pipeoptim", recompute=True),
    "bfloat16, recomputing": Method(policy="pipeoptim", precision="bfloat16", recompute=True),
    "bfloat16, stashing": Method(policy="stash", precision="bfloat16"),
}


@dataclass(frozen=True)
class Settings:
    """What is trained.

    Attributes:
        width, blocks: of the decoder.
        sequences: of text to train on, of 32 characters.
        epochs: of each training.
        seeds: of the order of samples.
    """

    width: int = 128
    blocks: int = 6
    sequences: int = 3200
    epochs: int = 2
    seeds: int = 3

    def __str__(self) -> str:
        return (
            f"decoder of {self.blocks} blocks of width {self.width}, minibatches of 16 × 32 "
            f"characters, AdamW with rate 0.002, {STAGES} stages on {STAGES} cores, {self.epochs} "
            f"epochs of {self.sequences} sequences, {self.seeds} orders of them; in turns"
        )


SHORT = Settings(width=16, blocks=2, sequences=64, epochs=1, seeds=1)


def rows(settings: Settings) -> Iterator[dict[str, str]]:
    """Yield a row of the table for every precision."""
    model = ModelReference.named(
        "benchmarks.deep_models:decoder", width=settings.width, blocks=settings.blocks
    )
    captured = capture(model)
    count = len(captured.graph)
    placement = Placement.from_assignment(
        [operator * STAGES // count for operator in range(count)], range(STAGES)
    )
    data, optimizer = first_text(settings.sequences), OptimizerSpec.parse("adamw", lr=0.002)
    seconds: dict[str, list[float]] = {name: [] for name in METHODS}
    losses: dict[str, list[float]] = {name: [] for name in METHODS}
    memory: dict[str, int] = {}
    with ClusterSession(captured, STAGES, optimizer=optimizer) as session:
        for seed in range(settings.seeds):
            source = SamplesInMemory(None, data, captured.task.batch_size, seed)
            source.lend_to(session)
            for name in list(METHODS)[:: 1 if seed % 2 == 0 else -1]:
                deployment = session.deploy(placement, METHODS[name])
                begin = time.perf_counter()
                for epoch in range(1, settings.epochs + 1):
                    options = source.training(epoch, 0, 0)
                    _, results = session.run(deployment, source.minibatches, options)
                taken = time.perf_counter() - begin
                seconds[name].append(taken / (settings.epochs * source.minibatches))
                held_out = source.held_out_count
                found = session.evaluate(deployment, held_out.minibatches, source.evaluation())
                losses[name].append(held_out.mean_loss(found.losses))
                memory[name] = max(result.peak_memory_bytes for result in results.values())
    base = statistics.median(seconds["float32"])
    for name in METHODS:
        loss = statistics.mean(losses[name])
        spread = statistics.stdev(losses[name]) if settings.seeds > 1 else 0.0
        median = statistics.median(seconds[name])
        yield {
            "precision": name,
            "ms per minibatch": f"{1e3 * median:.1f}",
            "relative": f"{median / base:.2f}",
            "memory of the larger stage": f"{memory[name] / 1e6:.0f} MB",
            "held-out loss": f"{loss:.3f} ± {spread:.3f}",
        }
