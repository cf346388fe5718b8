"""``--to vllm``: how many layers of a decoder every stage has, as vLLM reads it when it serves."""

from __future__ import annotations

from drlpp.exporting.layouts.megatron import layer_counts
from drlpp.exporting.layouts.module_layout import ModuleLayout


def vllm_text(layout: ModuleLayout, notes: tuple[str, ...]) -> str:
    """Return the environment of a server, and comments."""
    counts = ",".join(map(str, layer_counts(layout)))
    comments = "".join(f"# {note}\n" for note in notes)
    return f"{comments}export VLLM_PP_LAYER_PARTITION={counts}\n"
