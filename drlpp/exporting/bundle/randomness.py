"""Random numbers of dropout: the same for an operator and a minibatch, wherever they meet.

Every random operator seeds the generator from the training's seed, the minibatch and its own name.
So a training gives the same weights however the model is cut, and the same as drlpp's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

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
    # Numbers are drawn in the order of memory.
    args, kwargs = pytree.tree_map_only(Tensor, Tensor.contiguous, (args, kwargs))
    return operator(*args, **kwargs)


def _generator(tensors: list[Tensor]) -> torch.Generator:
    for tensor in tensors:
        if tensor.is_cuda:
            return torch.cuda.default_generators[tensor.device.index]
    return torch.default_generator
