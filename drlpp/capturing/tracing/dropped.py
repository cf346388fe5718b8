"""What ``torch.export`` drops without a word: noticed while a model is exported, and refused.

A graph of operators has no hooks on gradients, no attributes that one call leaves for the next, and
no random numbers but torch's: those of Python and numpy would be the same in every minibatch.
``torch.utils.checkpoint`` changes no number, so the model is captured without it, with a note.
"""

from __future__ import annotations

import pickle
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils import checkpoint
from torch.utils.hooks import RemovableHandle

from drlpp.errors import InvalidModel

_STANDARD = frozenset(vars(nn.Module()))
_OF_RECURRENT_LAYERS = frozenset(
    {"_flat_weights", "_flat_weight_refs", "_flat_weights_names", "_all_weights"}
)
_DEPTH = 4
"""How deep to look into lists, dictionaries and objects in attributes."""


class Dropped:
    """What was noticed.

    Attributes:
        notes: sentences for the user about what is gone without harm.
        problems: why the model cannot be captured faithfully.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.problems: list[str] = []

    def refuse(self, what: str) -> None:
        """Refuse the model if something is lost that matters.

        Raises:
            InvalidModel: the first problem.
        """
        if self.problems:
            raise InvalidModel(f"{what} cannot be captured: {self.problems[0]}")


@contextmanager
def noticing_dropped(module: nn.Module) -> Iterator[Dropped]:
    """Notice what export drops of ``module`` while it runs inside, and leave the module as it was.

    Nothing is raised here: :meth:`Dropped.refuse` does, once export itself has succeeded.
    """
    dropped = Dropped()
    with ExitStack() as stack:
        for owner, name, replacement in (
            (Tensor, "register_hook", _noticing_hook(dropped)),
            (Tensor, "register_post_accumulate_grad_hook", _noticing_hook(dropped)),
            # torch's two kinds of checkpointing.
            (checkpoint.CheckpointFunction, "apply", _called_at_once(dropped)),
            (checkpoint, "_checkpoint_without_reentrant_generator", _nothing_around(dropped)),
        ):
            stack.enter_context(replaced(owner, name, replacement))
        stack.enter_context(_noticing_state(module, dropped))
        yield dropped


def random_states() -> dict[str, bytes]:
    """Return the states of the generators that are not torch's, by how a user calls them."""
    return {
        "random": pickle.dumps(random.getstate()),
        "numpy.random": pickle.dumps(numpy.random.get_state()),
    }


def draws_elsewhere(before: Mapping[str, bytes]) -> str | None:
    """Return what is wrong with a forward that drew from these generators, None if it did not.

    Args:
        before: :func:`random_states` before the forward.
    """
    drawn = [name for name, state in random_states().items() if state != before[name]]
    return (
        f"its forward draws from {' and '.join(drawn)}, and a graph would keep what was drawn "
        "once; draw with torch's own random functions, such as torch.rand, and use torch.where "
        "instead of a branch"
        if drawn
        else None
    )


@contextmanager
def replaced(owner: Any, name: str, replacement: object) -> Iterator[None]:
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


def _noticing_hook(dropped: Dropped) -> Callable[..., Any]:
    def register(tensor: Tensor, hook: Callable[..., Any]) -> RemovableHandle:
        dropped.problems.append(
            f"it registers a hook on the gradient of a tensor ({_place_of_caller()}), and workers "
            "run no hooks; a torch.autograd.Function with a backward of its own is kept"
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
        results = function(*arguments)
        if _requires_gradient(results) and not _requires_gradient(arguments):
            dropped.problems.append(
                f"torch.utils.checkpoint ({_place_of_caller()}) of inputs without gradients trains "
                "nothing in what it calls; give it use_reentrant=False"
            )
        return results

    return apply


def _requires_gradient(values: Any) -> bool:
    tensors = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]
    return any(tensor.requires_grad for tensor in tensors)


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
    before = {name: dict(_attributes(part)) for name, part in parts.items()}
    content = {
        name: {key: _content(value) for key, value in attributes.items()}
        for name, attributes in before.items()
    }
    states: dict[str, bytes] = {}

    def begin(*_: Any) -> None:
        states.update(random_states())

    def compare(*_: Any) -> None:
        if drawn := draws_elsewhere(states):
            dropped.problems.append(drawn)
        for name, part in parts.items():
            for key, value in _attributes(part).items():
                if key not in content[name] or content[name][key] != _content(value):
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
            for key in _attributes(part).keys() - before[name].keys():
                del part.__dict__[key]


def _attributes(part: nn.Module) -> Mapping[str, Any]:
    left_out = _STANDARD | (_OF_RECURRENT_LAYERS if isinstance(part, nn.RNNBase) else set())
    return {key: value for key, value in vars(part).items() if key not in left_out}


def _content(value: object, depth: int = _DEPTH) -> object:
    """Return something that stays equal as long as ``value`` does not change."""
    match value:
        case None | bool() | int() | float() | complex() | str() | bytes() | torch.dtype():
            return type(value), repr(value)
        case Tensor() | nn.Module() | type():
            return _Same(value)
        case _ if depth == 0 or callable(value):
            return _Same(value)
        case random.Random():
            return _Same(value), value.getstate()
        case numpy.random.Generator():
            return _Same(value), repr(value.bit_generator.state)
        case dict():
            return type(value), [(_content(k, 0), _content(v, depth - 1)) for k, v in value.items()]
        case list() | tuple() | deque():
            return type(value), [_content(item, depth - 1) for item in value]
        case set() | frozenset():
            return type(value), frozenset(map(repr, value))
        case _ if hasattr(value, "__dict__"):
            return _Same(value), _content(vars(value), depth - 1)
    return _Same(value)


class _Same:
    """A value that equals any other for the same object, which it keeps alive."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)
