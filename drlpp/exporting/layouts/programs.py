"""What torchtitan, Megatron and DeepSpeed are told of a layout by modules.

torchtitan takes the modules of every stage, and a schedule as CSV; DeepSpeed a ``PipelineModule``
whose parts are the stages. Megatron-Core has a letter for each layer: ``E`` is the embedding, ``t``
a layer of the decoder, ``L`` the loss with what stands before it, and ``|`` divides stages.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from torch import nn

from drlpp.capturing.capture import CapturedModel
from drlpp.capturing.graph import OpGraph
from drlpp.exporting.chain import schedule_csv
from drlpp.exporting.layouts.module_layout import layers_of, units_of
from drlpp.exporting.nearest import Nearest, Unit

TORCHTITAN_CONTAINERS = (nn.ModuleList, nn.ModuleDict)
"""Whose children torchtitan can divide; it looks no deeper."""

# Its name says that there is one stage a rank; the CSV says what is done.
_TORCHTITAN = """{notes}
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


def _write_torchtitan(
    layout: Nearest, captured: CapturedModel, notes: tuple[str, ...], folder: Path
) -> str:
    """Write ``parallelism.toml`` and ``schedule.csv`` into ``folder``, which is made."""
    method, batch_size = layout.candidate.method, captured.task.batch_size
    folder.mkdir(parents=True, exist_ok=True)
    schedule = folder / "schedule.csv"
    schedule.write_text(schedule_csv(len(layout.units), method))
    parts = [[name for unit in stage for name in unit.modules] for stage in layout.units]
    options = folder / "parallelism.toml"
    options.write_text(
        _TORCHTITAN.format(
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
    return f"put {options} into your training's configuration"


DEEPSPEED_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
"""Whose children are layers of their own in the list that DeepSpeed divides."""

_DEEPSPEED = '''"""{model} in {stages} stages of DeepSpeed's pipeline.

{notes}"""

from deepspeed.pipe import PipelineModule

LAYERS = (
{layers}
)
"""What the list of layers is made of that ``Placed`` takes, in order. What the model computes
between these modules belongs to the layer before it."""

PARTS = {parts}
"""Stage k has the layers from PARTS[k] to PARTS[k + 1]."""

CONFIG = {{
    "train_batch_size": {batch},
    "train_micro_batch_size_per_gpu": {size},
    "gradient_accumulation_steps": {parts_of_step},
    "gradient_clipping": {clip},  # DeepSpeed clips to 1 unless told otherwise.
}}
"""Of ``deepspeed.initialize``: an update as it was placed, on one worker a stage."""


class Placed(PipelineModule):
    """Cut where the placement is: ``Placed(layers, num_stages={stages}, loss_fn=…)``."""

    def _partition_layers(self, method=None):
        if len(self._layer_specs) != len(LAYERS):
            raise ValueError(f"{{len(self._layer_specs)}} layers; PARTS are of {{len(LAYERS)}}")
        stage = self._topo.get_coord(self.global_rank).pipe
        self.parts = list(PARTS)
        self._set_bounds(start=PARTS[stage], stop=PARTS[stage + 1])
'''


def _write_deepspeed(
    layout: Nearest, captured: CapturedModel, notes: tuple[str, ...], file: Path
) -> str:
    """Write a Python module with the subclass ``Placed``."""
    method, batch_size = layout.candidate.method, captured.task.batch_size
    names = [[name for unit in stage for name in unit.modules] for stage in layout.units]
    file.write_text(
        _DEEPSPEED.format(
            model=captured.reference,
            stages=len(names),
            notes="".join(f"- {note}\n" for note in notes),
            layers="\n".join(f"    {name!r}," for stage in names for name in stage),
            batch=batch_size * method.accumulate,
            size=batch_size // method.microbatches,
            parts_of_step=method.microbatches * method.accumulate,
            clip=method.clip_norm,
            parts=[0, *accumulate(len(stage) for stage in names)],
        )
    )
    return "use its class Placed in place of PipelineModule, and its CONFIG"


def _write_megatron(
    layout: Nearest, captured: CapturedModel, notes: tuple[str, ...], file: Path
) -> str:
    """Write the arguments of a training, and comments; of a layout by the layers of a decoder."""
    method, batch_size = layout.candidate.method, captured.task.batch_size
    counts = [
        sum(unit.modules[0] not in ("before", "behind") for unit in stage) for stage in layout.units
    ]
    stages = ["t" * count for count in counts]
    stages[0], stages[-1] = f"E{stages[0]}", f"{stages[-1]}L"
    before, behind = layout.units[0][0].operators, layout.units[-1][-1].operators
    tied = any(
        not set(before).isdisjoint(shared.operators)
        and not set(behind).isdisjoint(shared.operators)
        for shared in captured.graph.shared_parameters
    )
    lines = [
        *(f"# {note}" for note in notes),
        f"--pipeline-model-parallel-size {len(layout.units)}",
        f"--num-layers {sum(counts)}",
        f"--pipeline-model-parallel-layout {'|'.join(stages)}",
        # Megatron ties the embedding and the output layer unless told otherwise.
        *([] if tied else ["--untie-embeddings-and-output-weights"]),
        f"--micro-batch-size {batch_size // method.microbatches}",
        f"--global-batch-size {batch_size * method.accumulate}",
        # Megatron clips to 1 unless told otherwise.
        f"--clip-grad {method.clip_norm}",
    ]
    file.write_text("".join(f"{line}\n" for line in lines))
    return f"give Megatron's training these arguments: $(grep -v '^#' {file})"


class ModuleFormat(NamedTuple):
    """A format that divides the modules of a model.

    Attributes:
        units: returns what a stage may have, of a model and its graph.
        only_1f1b: whether it has no other order than flushed 1F1B.
        write: writes a layout of a model, with comments, to a place that is free; returns what to
            do with it.
    """

    units: Callable[[nn.Module, OpGraph], tuple[Unit, ...]]
    only_1f1b: bool
    write: Callable[[Nearest, CapturedModel, tuple[str, ...], Path], str]


MODULE_FORMATS = {
    "torchtitan": ModuleFormat(
        partial(units_of, containers=TORCHTITAN_CONTAINERS), False, _write_torchtitan
    ),
    "megatron": ModuleFormat(layers_of, True, _write_megatron),
    "deepspeed": ModuleFormat(
        partial(units_of, containers=DEEPSPEED_CONTAINERS), True, _write_deepspeed
    ),
}
