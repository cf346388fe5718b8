"""``drlpp weights``: what a training has reached, as a file that other projects read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from drlpp.cli.command_line import build_console


def write_weights(
    checkpoint: Annotated[
        str,
        typer.Argument(
            help="The folder of a run of drlpp train, a checkpoint.safetensors, or the folder or "
            "URL that it was given as --checkpoints."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path(
        "model.safetensors"
    ),
) -> dict[str, Any]:
    """Write the weights of a checkpoint as one model.safetensors."""
    from drlpp.runtime.training.checkpoints.exported_weights import export_weights

    count = export_weights(checkpoint, output)
    build_console().print(f"{count} tensors written to {output}", soft_wrap=True)
    return {"tensors": count, "output": str(output)}
