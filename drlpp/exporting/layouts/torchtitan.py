"""``--to torchtitan``: the modules of every stage, and a schedule as CSV."""

from __future__ import annotations

import json
from pathlib import Path

from torch import nn

from drlpp.exporting.layouts.module_layout import ModuleLayout
from drlpp.exporting.torch_schedule import chain_schedule, computations, csv_text

CONTAINERS = (nn.ModuleList, nn.ModuleDict)
"""Whose children torchtitan can divide; it looks no deeper."""

# Its name says that there is one stage a rank; the CSV says what is done.
_TEXT = """{notes}
[parallelism]
pipeline_parallel_degree = {stages}
module_fqns_per_model_part = [
{parts}
]
pipeline_parallel_schedule = "1F1B"
pipeline_parallel_schedule_csv = {schedule}
pipeline_parallel_microbatch_size = {size}

[training]
local_batch_size = {batch}
max_norm = {clip}
"""


def write_torchtitan(
    layout: ModuleLayout, batch_size: int, notes: tuple[str, ...], folder: Path
) -> None:
    """Write ``parallelism.toml`` and ``schedule.csv`` into ``folder``.

    Args:
        layout: by the modules that :data:`CONTAINERS` says; its method flushes.
        batch_size: samples of a minibatch.
        notes: comments.
        folder: is made.
    """
    method = layout.nearest.candidate.method
    folder.mkdir(parents=True, exist_ok=True)
    rows = computations(chain_schedule(len(layout.units), method, method.accumulate))
    schedule = folder / "schedule.csv"
    schedule.write_text(csv_text(rows))
    parts = [[name for unit in stage for name in unit.modules] for stage in layout.units]
    (folder / "parallelism.toml").write_text(
        _TEXT.format(
            notes="".join(f"# {note}\n" for note in notes),
            stages=len(layout.units),
            parts="\n".join(f"    {json.dumps(part)}," for part in parts),
            schedule=json.dumps(str(schedule)),
            size=batch_size // method.microbatches,
            batch=batch_size * method.accumulate,
            # torchtitan clips to 1 unless told otherwise, and cannot be told not to.
            clip=method.clip_norm or "inf",
        ).lstrip()
    )
