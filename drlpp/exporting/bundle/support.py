"""What a bundle says of itself; and what its stages call, for their weights and random numbers.

Every random operator seeds the generator from the training's seed, the minibatch and its own name.
So a training gives the same weights however the model is cut, and the same as drlpp's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

FOLDER = Path(__file__).parent


def read_facts(folder: Path = FOLDER) -> SimpleNamespace:
    """Read ``facts.json``. Shapes and types are those of tensors for one microbatch.

    It has ``torch``, the version that the bundle was made for, the ``model``'s name,
    ``minibatches`` of a step and its update, each of ``batch_size`` samples in ``microbatches``
    parts; an ``optimizer`` of ``torch.optim`` with its ``options``, ``clip_norm`` (0 does not
    clip), the ``seed`` of dropout. Of every stage ``inputs`` has the indices of the model's inputs
    that it reads, ``arrives`` what the one before sends (of the first one its inputs), ``leaves``
    what it sends to the next (of the last one what the model returns). ``aliases`` has for every
    further name of a shared weight the one that the stages have, ``ties`` the weights that several
    stages hold copies of, with these stages.
    """
    return SimpleNamespace(**json.loads((folder / "facts.json").read_text()))


def version_note(facts: SimpleNamespace) -> str | None:
    """Return what to say if another torch is installed, whose pipelining may differ."""
    here = str(torch.__version__)
    if here.partition("+")[0] == facts.torch.partition("+")[0]:
        return None
    return (
        f"this bundle was made for torch {facts.torch}, and this is torch {here}: names of its "
        "pipelining that are not public may have changed; install that version, or export anew"
    )


_pass_key = ""


def begin_pass(seed: int, minibatch: int, microbatch: int) -> None:
    """Say which minibatch and microbatch the random operators that follow belong to."""
    global _pass_key
    _pass_key = f"{seed} {(minibatch, microbatch)}"


def seeded(name: str, operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a random operator with the random numbers of ``name`` in this pass."""
    digest = hashlib.blake2b(f"{_pass_key} {name}".encode(), digest_size=7).digest()
    tensors = [value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
    _generator(tensors).manual_seed(int.from_bytes(digest, "big"))
    if operator is not torch.ops.aten.scaled_dot_product_attention.default:
        # Numbers are drawn in the order of memory.
        args, kwargs = pytree.tree_map_only(Tensor, Tensor.contiguous, (args, kwargs))
    return operator(*args, **kwargs)


def _generator(tensors: list[Tensor]) -> torch.Generator:
    for tensor in tensors:
        if tensor.device.type != "cpu":
            module = torch.get_device_module(tensor.device)
            found: torch.Generator = module.default_generators[tensor.device.index]
            return found
    return torch.default_generator


def add_parameter(module: nn.Module, name: str, value: Tensor, *, trained: bool) -> None:
    """Give ``module`` a parameter with a dotted name."""
    owner, last = _owner(module, name)
    owner.register_parameter(last, nn.Parameter(value, requires_grad=trained))


def add_buffer(module: nn.Module, name: str, value: Tensor, *, persistent: bool) -> None:
    """Give ``module`` a buffer with a dotted name."""
    owner, last = _owner(module, name)
    owner.register_buffer(last, value, persistent=persistent)


def device_of(module: nn.Module) -> torch.device:
    """Return the device that ``module`` computes on; that of its tensors, else torch's default."""
    for tensor in (*module.parameters(), *module.buffers()):
        return tensor.device
    return torch.get_default_device()


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    *path, last = name.split(".")
    for part in path:
        if part not in module._modules:
            module.add_module(part, nn.Module())
        module = module.get_submodule(part)
    return module, last
