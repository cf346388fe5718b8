"""Python code of graphs: tracing it anew where a graph is loaded, and forgetting its text.

A pickled graph is Python code, and loading it traces that code. fx's own tracer computes what no
input reaches there and then, and keeps the result: a dropout mask of ones would be the same in
every pass, and a tensor of zeros that is added to in place would keep its sums.

fx also keeps the text of this code for tracebacks as long as the process lives. A session that
deploys placement after placement would grow by it, here and on every worker.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from torch import fx, nn
from torch._ops import OpOverload
from torch.fx import graph_module
from torch.overrides import TorchFunctionMode


class Retracer(fx.Tracer, TorchFunctionMode):
    """Records every operator, and the runtime's functions around them, whatever the arguments."""

    def trace(
        self,
        root: nn.Module | Callable[..., Any],
        concrete_args: dict[str, Any] | None = None,
    ) -> fx.Graph:
        """Trace the code of a graph."""
        with self:
            return super().trace(root, concrete_args)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if isinstance(func, OpOverload | FunctionType):
            return self.create_proxy("call_function", func, tuple(args), dict(kwargs or {}))
        return func(*args, **(kwargs or {}))


@contextmanager
def discarded_fx_sources() -> Iterator[None]:
    """Forget the text of the code that graphs get inside; the graphs work as before."""
    kept: dict[str, str] = graph_module._loader.eval_cache
    before = set(kept)
    try:
        yield
    finally:
        for name in kept.keys() - before:
            del kept[name]
            linecache.cache.pop(name, None)
