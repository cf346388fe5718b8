"""``--to deepspeed``: a ``PipelineModule`` whose parts are the stages."""

from __future__ import annotations

from itertools import accumulate

from torch import nn

from drlpp.exporting.layouts.module_layout import ModuleLayout

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
"""Whose children are layers of their own in the list that DeepSpeed divides."""

_TEXT = '''"""{model} in {stages} stages of DeepSpeed's pipeline.

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


def deepspeed_text(
    layout: ModuleLayout, batch_size: int, model: str, notes: tuple[str, ...]
) -> str:
    """Return a Python module with the subclass ``Placed``."""
    method = layout.nearest.candidate.method
    names = [[name for unit in stage for name in unit.modules] for stage in layout.units]
    return _TEXT.format(
        model=model,
        stages=len(names),
        notes="".join(f"- {note}\n" for note in notes),
        layers="\n".join(f"    {name!r}," for stage in names for name in stage),
        batch=batch_size * method.accumulate,
        size=batch_size // method.microbatches,
        parts_of_step=method.microbatches * method.accumulate,
        clip=method.clip_norm,
        parts=[0, *accumulate(len(stage) for stage in names)],
    )
