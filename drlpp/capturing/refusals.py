"""What a graph of operators cannot have, noticed and refused.

Some modules are known by what they are before anything is traced. What ``torch.export`` drops
without a word is noticed while a model is exported: hooks on gradients, backwards of
``torch.autograd.Function``, attributes that one call leaves for the next, and random numbers that
are not torch's, which would be the same in every minibatch. ``torch.utils.checkpoint`` changes no
number, so the model is captured without it, with a note.
"""

from __future__ import annotations

import pickle
import random
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree
from torch.utils import checkpoint
from torch.utils.hooks import RemovableHandle

from drlpp.errors import InvalidModel

_NO_HOOKS = "workers run no hooks; put what it does into the forward, the loss or the optimizer"
_PARAMETRIZATIONS = {"SpectralNorm": "spectral_norm", "WeightNorm": "weight_norm"}
"""By the class of an old hook that computes a weight, what torch has instead."""


def refuse_unsupported(module: nn.Module, what: str) -> None:
    """Refuse a module that torch.export fails on, or of which it drops something.

    Args:
        module: the user's.
        what: how errors call it, such as ``model vgg16``.

    Raises:
        InvalidModel: the first reason.
    """
    reasons = [
        f"module {name} ({type(part).__name__}) {reason}"
        if name
        else f"{type(part).__name__} {reason}"
        for name, part in module.named_modules()
        for reason in _reasons(part)
    ]
    if torch_module._global_backward_hooks or torch_module._global_backward_pre_hooks:
        reasons.append(f"a backward hook is registered for all modules; {_NO_HOOKS}")
    if reasons:
        raise InvalidModel(f"{what} cannot be captured: {reasons[0]}")


def _reasons(part: nn.Module) -> Iterator[str]:
    if isinstance(part, nn.DataParallel | DistributedDataParallel):
        yield "copies a model to several devices; pass what it wraps, model.module"
    if isinstance(part, torch.jit.ScriptModule):
        yield "is TorchScript; pass the module that it was made of"
        return
    if ".ao.nn.quantized" in type(part).__module__:
        yield "is quantized and cannot be trained; pass the model as it was before"
    for hook in part._forward_pre_hooks.values():
        new = _PARAMETRIZATIONS.get(type(hook).__name__)
        if new and type(hook).__module__.startswith("torch.nn.utils."):
            yield f"computes its weight in a hook; use torch.nn.utils.parametrizations.{new}"
    if part._backward_hooks or part._backward_pre_hooks:
        yield f"has a backward hook; {_NO_HOOKS}"
    for name, weight in part.named_parameters(recurse=False):
        if weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None):
            yield f"has a hook on the gradient of its parameter {name}; {_NO_HOOKS}"
    for name in (*part._modules, *part._parameters, *part._buffers):
        if not name.isprintable() or '"' in name or "\\" in name:
            yield f"gives something the name {name!r}; no quotation marks or line breaks in names"


class Dropped(NamedTuple):
    """What was noticed.

    Attributes:
        notes: sentences for the user about what is gone without harm.
        problems: why the model cannot be captured faithfully.
    """

    notes: list[str]
    problems: list[str]


@contextmanager
def noticing_dropped(module: nn.Module) -> Iterator[Dropped]:
    """Notice what export drops of ``module`` while it runs inside, and leave the module as it was.

    Nothing is raised here, as export itself may fail for a better reason.
    """
    dropped = Dropped([], [])
    # All Functions are known before any is replaced: one may inherit another's forward.
    functions = [(f, "forward", _noticing_call(dropped, f)) for f in _functions_of_users()]
    with ExitStack() as stack:
        for owner, name, replacement in (
            (Tensor, "register_hook", _noticing_hook(dropped)),
            (Tensor, "register_post_accumulate_grad_hook", _noticing_hook(dropped)),
            # torch's two kinds of checkpointing.
            (checkpoint.CheckpointFunction, "apply", _called_at_once(dropped)),
            (checkpoint, "_checkpoint_without_reentrant_generator", _nothing_around(dropped)),
            *functions,
        ):
            stack.enter_context(_replaced(owner, name, replacement))
        stack.enter_context(_noticing_state(module, dropped))
        yield dropped


@contextmanager
def _replaced(owner: Any, name: str, replacement: object) -> Iterator[None]:
    """Replace an attribute of a class or module inside the block."""
    own = vars(owner).get(name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


def _random_states() -> dict[str, bytes]:
    """Return the states of the generators that are not torch's, by how a user calls them."""
    return {
        "random": pickle.dumps(random.getstate()),
        "numpy.random": pickle.dumps(numpy.random.get_state()),
    }


def _functions_of_users(
    base: type[torch.autograd.Function] = torch.autograd.Function,
) -> Iterator[type[torch.autograd.Function]]:
    for function in base.__subclasses__():
        if not function.__module__.startswith(("torch.", "drlpp.")):
            yield function
        yield from _functions_of_users(function)


def _noticing_call(dropped: Dropped, function: type[torch.autograd.Function]) -> object:
    original = function.forward

    def forward(*arguments: Any, **options: Any) -> Any:
        dropped.problems.append(
            f"it calls the torch.autograd.Function {function.__name__} ({_place_of_caller()}), "
            "whose backward no graph keeps; give the gradient by detach(): x + (f(x) - x).detach() "
            "has the values of f and the gradient of x"
        )
        return original(*arguments, **options)

    return staticmethod(forward)


def _noticing_hook(dropped: Dropped) -> Callable[..., Any]:
    def register(tensor: Tensor, hook: Callable[..., Any]) -> RemovableHandle:
        dropped.problems.append(
            f"it registers a hook on the gradient of a tensor ({_place_of_caller()}); {_NO_HOOKS}"
        )
        return RemovableHandle(OrderedDict())

    return register


def _place_of_caller() -> str:
    """Return file and line of the nearest caller outside of torch and this file; empty if none."""
    frame = sys._getframe(1)
    ours = (str(Path(torch.__file__).parent), __file__)
    while frame.f_back is not None:
        if not frame.f_code.co_filename.startswith(ours):
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _note_checkpoint(dropped: Dropped) -> None:
    note = (
        f"torch.utils.checkpoint ({_place_of_caller()}) recomputes nothing in a pipeline: weights "
        "and gradients are the same, and activations are kept. To save memory, let stages be "
        "recomputed as a whole (--method-option recompute=true)"
    )
    if note not in dropped.notes:
        dropped.notes.append(note)


def _called_at_once(dropped: Dropped) -> Callable[..., Any]:
    def apply(function: Callable[..., Any], preserve_rng_state: bool, *arguments: Any) -> Any:
        _note_checkpoint(dropped)
        return function(*arguments)

    return apply


def _nothing_around(dropped: Dropped) -> Callable[..., Iterator[None]]:
    def around(*arguments: Any, **options: Any) -> Iterator[None]:
        _note_checkpoint(dropped)
        yield

    return around


@contextmanager
def _noticing_state(module: nn.Module, dropped: Dropped) -> Iterator[None]:
    """Notice attributes that a call of ``module`` changes, at the end of its forward.

    torch.export puts most of them back before it returns, and leaves those that are new.
    """
    parts = dict(module.named_modules())
    # What an attribute no longer has stays alive here, so that nothing else has its id.
    alive: list[object] = []
    before = {
        (name, key): _content(value, alive)
        for name, part in parts.items()
        for key, value in _attributes(part).items()
    }
    states: dict[str, bytes] = {}

    def begin(*_: Any) -> None:
        states.update(_random_states())

    def compare(*_: Any) -> None:
        if drawn := [name for name, state in _random_states().items() if state != states[name]]:
            dropped.problems.append(
                f"its forward draws from {' and '.join(drawn)}, and a graph would keep what was "
                "drawn once; draw with torch's own random functions, such as torch.rand, and use "
                "torch.where instead of a branch"
            )
        for name, part in parts.items():
            for key, value in _attributes(part).items():
                if before.get((name, key)) != _content(value, alive):
                    shown = ".".join(filter(None, [name, key]))
                    dropped.problems.append(
                        f"its forward changes the attribute {shown}, which the next call would "
                        "find, but workers do not; return it, or keep a tensor in a buffer "
                        "(register_buffer). If only the first call changes it, such as a cache, "
                        "call the module once in its factory"
                    )

    handles = (
        module.register_forward_pre_hook(begin),
        module.register_forward_hook(compare, always_call=True),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for name, part in parts.items():
            for key in [key for key in _attributes(part) if (name, key) not in before]:
                del part.__dict__[key]


_STANDARD = frozenset(vars(nn.Module()))
_OF_RECURRENT_LAYERS = {"_flat_weights", "_flat_weight_refs", "_flat_weights_names", "_all_weights"}


def _attributes(part: nn.Module) -> Mapping[str, Any]:
    left_out = _STANDARD | (_OF_RECURRENT_LAYERS if isinstance(part, nn.RNNBase) else set())
    return {key: value for key, value in vars(part).items() if key not in left_out}


def _content(value: object, alive: list[object]) -> list[object]:
    """Return what stays equal while ``value`` does; objects are known by id, and kept ``alive``."""
    leaves, structure = pytree.tree_flatten(value)
    seen: list[object] = [repr(structure)]
    for leaf in leaves:
        match leaf:
            case bool() | int() | float() | complex() | str() | bytes():
                seen.append(repr(leaf))
            case set() | frozenset():
                seen.append(sorted(map(repr, leaf)))
            case _:
                seen.append(id(leaf))
                alive.append(leaf)
    return seen
