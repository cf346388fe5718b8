"""A training's weights as one file that other projects read."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from drlpp.errors import InvalidFile, StorageFailure
from drlpp.io.documents import replacing
from drlpp.runtime.training.checkpoints.checkpoint_store import weights_of


def export_weights(checkpoint: str | Path, path: str | Path) -> int:
    """Write the weights and buffers of a checkpoint as ``model.safetensors``, a ``state_dict``.

    Args:
        checkpoint: the folder of a run, a ``checkpoint.safetensors``, or the folder or URL that a
            training was given for its ``checkpoints``.
        path: of the new file.

    Returns:
        How many tensors it has.

    Raises:
        InvalidFile: there is no checkpoint, or a damaged one.
        StorageFailure: the file cannot be written; ``path`` is as it was.
    """
    with tempfile.TemporaryDirectory(prefix="drlpp-") as folder:
        weights = weights_of(checkpoint, Path(folder))
        # The format has no tensors that share memory.
        apart = {
            name: tensor.clone(memory_format=torch.contiguous_format)
            for name, tensor in weights.items()
        }
    try:
        with replacing(Path(path)) as temporary:
            save_file(apart, temporary, {"format": "pt"})
    except (OSError, InvalidFile, SafetensorError) as error:
        raise StorageFailure(f"{path}: the weights could not be written ({error})") from None
    return len(apart)
