"""``--to megatron``: the layout of Megatron-Core, a letter for every layer.

``E`` is the embedding, ``t`` a layer of the decoder, ``L`` the loss with what stands before it;
``|`` divides stages. The embedding is in the first stage and the loss in the last.
"""

from __future__ import annotations

from drlpp.capturing.graph import OpGraph
from drlpp.exporting.layouts.module_layout import ModuleLayout


def layer_counts(layout: ModuleLayout) -> list[int]:
    """Return how many layers every stage has; of a layout by the layers of a decoder."""
    return [
        sum(unit.modules[0] not in ("before", "behind") for unit in stage) for stage in layout.units
    ]


def layout_string(layout: ModuleLayout) -> str:
    """Return the layout, such as ``Ett|ttt|tL``."""
    stages = ["t" * count for count in layer_counts(layout)]
    stages[0], stages[-1] = f"E{stages[0]}", f"{stages[-1]}L"
    return "|".join(stages)


def is_tied(layout: ModuleLayout, graph: OpGraph) -> bool:
    """Return whether what stands before the layers shares a weight with what stands behind."""
    before, behind = layout.units[0][0].operators, layout.units[-1][-1].operators
    return any(
        not set(before).isdisjoint(shared.operators)
        and not set(behind).isdisjoint(shared.operators)
        for shared in graph.shared_parameters
    )


def megatron_text(
    layout: ModuleLayout, graph: OpGraph, batch_size: int, notes: tuple[str, ...]
) -> str:
    """Return the arguments of a training, and comments."""
    method = layout.nearest.candidate.method
    # Megatron ties the embedding and the output layer unless told otherwise.
    untied = [] if is_tied(layout, graph) else ["--untie-embeddings-and-output-weights\n"]
    return "".join(
        [
            *(f"# {note}\n" for note in notes),
            f"--pipeline-model-parallel-size {len(layout.units)}\n",
            f"--num-layers {sum(layer_counts(layout))}\n",
            f"--pipeline-model-parallel-layout {layout_string(layout)}\n",
            *untied,
            f"--micro-batch-size {batch_size // method.microbatches}\n",
            f"--global-batch-size {batch_size * method.accumulate}\n",
            # Megatron clips to 1 unless told otherwise.
            f"--clip-grad {method.clip_norm}\n",
        ]
    )
