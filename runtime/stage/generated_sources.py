"""Making and loading graphs without keeping the text of their code for ever.

fx turns a graph into Python code whenever one is made or loaded, and keeps the text of each for
tracebacks as long as the process lives. A session that deploys placement after placement would
grow by it, here and on every worker.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from contextlib import contextmanager

from torch.fx import graph_module


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
