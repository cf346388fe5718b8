"""The times of modules from a trace of ``torch.profiler`` (Kineto) of a user's own training.

Such a trace has a span for every call of a module, if it was recorded with ``with_stack=True``.
What runs in a span belongs to the innermost module. A node of the backward has the number of the
forward operator that made it, and belongs to its module; a gradient's accumulation to the node
before it::

    main thread  ├─ nn.Module: Net_0 ───────────────────────────┤
                   ├─ Linear_0 ──────┤   ├─ Linear_1 ──────┤
                      aten::linear, 7       aten::linear, 9
    autograd's   ├ evaluate_function: AddmmBackward0, 9 ┤├ AccumulateGrad ┤├ AddmmBackward0, 7 ┤

Where kernels of a GPU were recorded, what was launched in a span counts with their seconds instead.
Instances are called ``Linear_0``, ``Linear_1`` in a trace; which is which follows from the module
that calls them, and among its children of one class from the order in which they were added to it.
"""

from __future__ import annotations

import gzip
import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from drlpp.costs.files.module_times import ModuleTimes
from drlpp.errors import InvalidFile
from drlpp.io.documents import read_text

if TYPE_CHECKING:
    from torch import nn

_LONGEST_BYTES = 2**31
_MODULE = "nn.Module: "
_BACKWARD = "autograd::engine::evaluate_function: "
_STEP = "Optimizer.step"
_SECONDS_PER_MICROSECOND = 1e-6
_UNCALLED = ("ModuleList", "ModuleDict")


@dataclass(frozen=True)
class _Span:
    """A call of a module, or an operator with all that it calls."""

    name: str
    begin: float
    end: float
    thread: Any
    args: dict[str, Any]


def read_trace(path: Path, module: nn.Module) -> ModuleTimes:
    """Read ``trace.json`` or ``trace.json.gz``.

    Args:
        path: of the file that ``export_chrome_trace`` wrote.
        module: the model that was trained, under its class's name in the trace.

    Raises:
        InvalidFile: what is missing in the trace, and how to record it.
    """
    try:
        return _Trace(path, _events(path), module).times()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InvalidFile):
            raise
        raise InvalidFile(
            f"{path}: is no trace of torch.profiler ({type(error).__name__}: {error})"
        ) from None


def _events(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".gz":
        try:
            with gzip.open(path, "rt", encoding="utf-8") as file:
                text = file.read(_LONGEST_BYTES)
        except (OSError, EOFError) as error:
            raise InvalidFile(f"{path}: cannot be read ({error})") from None
    else:
        text = read_text(path, _LONGEST_BYTES)
    return [event for event in json.loads(text)["traceEvents"] if event.get("ph") == "X"]


class _Trace:
    """The spans of a trace, and to whom they belong."""

    def __init__(self, path: Path, events: Iterable[dict[str, Any]], module: nn.Module) -> None:
        self._path, self._module = path, module
        by_kind: dict[str, list[_Span]] = defaultdict(list)
        for event in events:
            span = _span(event)
            kind = str(event.get("cat"))
            if kind != "python_function" or span.name.startswith(_MODULE):
                by_kind[kind].append(span)
        modules = by_kind["python_function"]
        if not modules:
            raise InvalidFile(
                f"{path}: no calls of modules were recorded; use torch.profiler.profile(…, "
                "with_stack=True)"
            )
        self._kernels = _Kernels(by_kind)
        self._steps = [s for s in by_kind["user_annotation"] if s.name.startswith(_STEP)]
        self._operators = sorted(by_kind["cpu_op"], key=lambda span: (span.begin, -span.end))
        name = type(module).__name__
        roots = [s for s in _outermost(modules) if _class_of(s) == name]
        if not roots:
            raise InvalidFile(
                f"{path}: has no call of a {name} that is not inside of another module; trace a "
                "training of the same model"
            )
        self._roots = sorted(roots, key=lambda span: span.begin)
        self._calls = _named_calls(self._roots, modules, module)

    def times(self) -> ModuleTimes:
        """Return the median over minibatches of what every module takes."""
        forward, backward = self._seconds()
        if not any(backward.values()):
            raise InvalidFile(
                f"{self._path}: has no backward of what the model computes; record whole "
                "minibatches of a training"
            )
        count = len(self._roots)

        def middle(found: dict[tuple[str, int], float]) -> dict[str, float]:
            names = sorted(self._calls.names)
            return {name: median(found.get((name, k), 0.0) for k in range(count)) for name in names}

        update = median(self._kernels.seconds(step) for step in self._steps) if self._steps else 0.0
        device = "trace of a GPU" if self._kernels.known else "trace of a CPU"
        return ModuleTimes(middle(forward), middle(backward), update, count, device)

    def _seconds(self) -> tuple[dict[tuple[str, int], float], dict[tuple[str, int], float]]:
        """Return the seconds of modules in every minibatch, forward and backward."""
        owner_of: dict[int, str | None] = {}
        begins = [root.begin for root in self._roots]
        forward: dict[tuple[str, int], float] = defaultdict(float)
        backward: dict[tuple[str, int], float] = defaultdict(float)
        # The last to begin with a number made the node; others before it only looked at the number.
        for span in self._operators:
            number = span.args.get("Sequence number")
            if number is not None and not span.name.startswith(_BACKWARD) and _is_forward(span):
                owner_of[number] = self._owner(span)
        last: str | None = None
        for span in _outermost(self._operators):
            minibatch = bisect_right(begins, span.begin) - 1
            if minibatch < 0:
                continue
            if span.name.startswith(_BACKWARD):
                number = span.args.get("Sequence number")
                if "AccumulateGrad" not in span.name:
                    last = owner_of.get(number) if number is not None else None
                if last is not None:
                    backward[last, minibatch] += self._kernels.seconds(span)
            elif (name := self._owner(span)) is not None:
                forward[name, minibatch] += self._kernels.seconds(span)
        return forward, backward

    def _owner(self, span: _Span) -> str | None:
        """Return the innermost module that was called around a span."""
        names = [(call.begin, name) for call, name in self._calls.around(span)]
        return max(names)[1] if names else None


class _Calls:
    """Calls of modules with their names, by minibatch, so that few are looked at."""

    def __init__(self, roots: Sequence[_Span], named: Iterable[tuple[_Span, str]]) -> None:
        self._begins = [root.begin for root in roots]
        self.names: set[str] = set()
        self._of: list[list[tuple[_Span, str]]] = [[] for _ in roots]
        for call, name in named:
            self.names.add(name)
            self._of[bisect_right(self._begins, call.begin) - 1].append((call, name))

    def around(self, span: _Span) -> Iterator[tuple[_Span, str]]:
        """Yield the calls that a span is inside of."""
        number = bisect_right(self._begins, span.begin) - 1
        if number >= 0:
            yield from (found for found in self._of[number] if _inside(span, found[0]))


class _Kernels:
    """Seconds of spans: of the kernels that they launched, where any were recorded."""

    def __init__(self, by_kind: dict[str, list[_Span]]) -> None:
        ran: dict[Any, float] = defaultdict(float)
        for kind in ("kernel", "gpu_memcpy", "gpu_memset"):
            for span in by_kind[kind]:
                ran[span.args.get("correlation")] += span.end - span.begin
        self.known = bool(ran)
        launches: dict[Any, list[tuple[float, float]]] = defaultdict(list)
        for kind in ("cuda_runtime", "cuda_driver"):
            for span in by_kind[kind]:
                if (seconds := ran.get(span.args.get("correlation"))) is not None:
                    launches[span.thread].append((span.begin, seconds))
        self._launches = {thread: sorted(found) for thread, found in launches.items()}

    def seconds(self, span: _Span) -> float:
        """Return what a span takes."""
        if not self.known:
            return (span.end - span.begin) * _SECONDS_PER_MICROSECOND
        found = self._launches.get(span.thread, [])
        first, last = (bisect_right(found, (at, -1.0)) for at in (span.begin, span.end))
        return sum(seconds for _, seconds in found[first:last]) * _SECONDS_PER_MICROSECOND


def _span(event: dict[str, Any]) -> _Span:
    begin = float(event["ts"])
    args = event.get("args") or {}
    return _Span(str(event["name"]), begin, begin + float(event["dur"]), event["tid"], dict(args))


def _is_forward(span: _Span) -> bool:
    """Return whether a span is no operator of the backward, which has its forward's thread."""
    return not span.args.get("Fwd thread id")


def _inside(span: _Span, around: _Span) -> bool:
    same = span.thread == around.thread
    return same and around.begin <= span.begin and span.end <= around.end


def _outermost(spans: Iterable[_Span]) -> list[_Span]:
    """Return the spans that are inside of no other, in the order in which they begin."""
    ends: dict[Any, float] = {}
    found = []
    for span in sorted(spans, key=lambda span: (span.begin, -span.end)):
        if span.begin >= ends.get(span.thread, float("-inf")):
            ends[span.thread] = span.end
            found.append(span)
    return found


def _class_of(span: _Span) -> str:
    return span.name.removeprefix(_MODULE).rpartition("_")[0]


def _named_calls(roots: Sequence[_Span], spans: Iterable[_Span], model: nn.Module) -> _Calls:
    """Return the calls inside of the model's, with the names of the modules."""
    instances = dict(model.named_modules())
    name_of: dict[str, str] = {}
    named: list[tuple[_Span, str]] = []
    stack: list[tuple[_Span, str]] = []
    of_roots = {id(root) for root in roots}
    for span in sorted(spans, key=lambda span: (span.begin, -span.end)):
        while stack and not _inside(span, stack[-1][0]):
            stack.pop()
        if id(span) in of_roots:
            name: str | None = ""
        elif not stack:
            continue
        else:
            name = name_of.get(span.name)
            if name is None:
                taken = set(name_of.values())
                children = _children(stack[-1][1], instances[stack[-1][1]])
                name = next(
                    (
                        child
                        for child in children
                        if child not in taken and type(instances[child]).__name__ == _class_of(span)
                    ),
                    None,
                )
        if name is None:
            # Of another model: what it does counts for the module that calls it.
            continue
        if name:
            name_of[span.name] = name
        stack.append((span, name))
        named.append((span, name))
    return _Calls(roots, named)


def _children(name: str, module: nn.Module) -> Iterator[str]:
    """Yield the names of the modules that a module may call, also those in its lists."""
    for part, child in module.named_children():
        inner = f"{name}.{part}" if name else part
        if type(child).__name__ in _UNCALLED:
            yield from _children(inner, child)
        else:
            yield inner
