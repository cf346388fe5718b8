"""Files of weights: tensors by name, with a few lines on how they came about."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from drlpp.errors import InvalidFile

PRETRAINED = Path(__file__).parents[1] / "pretrained" / "transfer.safetensors"
"""The weights that come with this package; their metadata tells the command that made them."""


def save_weights(network: nn.Module, path: Path, metadata: Mapping[str, str]) -> None:
    """Write a network's weights, with ``metadata`` on how they came about."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.contiguous() for name, value in network.state_dict().items()}
    save_file(tensors, path, dict(metadata))


def load_weights(network: nn.Module, path: Path) -> dict[str, str]:
    """Read a network's weights; returns the metadata.

    Raises:
        InvalidFile: if there is no such file, or it holds other weights.
    """
    if not path.is_file():
        raise InvalidFile(f"{path}: no such file; expected weights in the format of safetensors")
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = dict(file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise InvalidFile(f"{path}: not a file of weights ({error})") from None
    for name, value in network.state_dict().items():
        # load_state_dict would cast it.
        if name in tensors and tensors[name].dtype != value.dtype:
            raise InvalidFile(
                f"{path}: the weights {name!r} are of {tensors[name].dtype}, but the network has "
                f"{value.dtype}; train the policy again"
            )
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise InvalidFile(
            f"{path}: not weights of this network ({reason}); train the policy again"
        ) from None
    return metadata
