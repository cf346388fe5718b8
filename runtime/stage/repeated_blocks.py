"""Blocks of a stage that repeat, such as the layers of a decoder, as parts of its graph.

A block begins where an operator reads a weight of another module of a list than the operators
before (``layers.3.norm.weight`` is of ``layers.3``), or of none::

    embedding ─ layers.0 ─ layers.1 ─ … ─ layers.7 ─ norm, head

What convolves stays whole. Inductor lays tensors out for all convolutions that it sees at once; cut
at its blocks, ResNet-50 takes 1.6 times as long, VGG-16 1.4 times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping

from torch import fx
from torch._ops import OpOverload

from drlpp.capturing.graph import listed_module
from drlpp.torch_versions import split_into_tuples


def divided(module: fx.GraphModule, weights: Mapping[str, str]) -> fx.GraphModule | None:
    """Return a graph that calls a part for each block that repeats, and for all in between.

    Args:
        module: a graph without modules.
        weights: the names of its placeholders that are weights, and theirs in the model.

    Returns:
        None where nothing repeats, or something convolves.
    """
    targets = {node.target for node in module.graph.nodes if node.op == "call_function"}
    if any(isinstance(one, OpOverload) and one._opname.startswith("conv") for one in targets):
        return None
    runs: list[list[fx.Node]] = []
    block: str | None = None
    for node in module.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        read = [weights[one.name] for one in node.all_input_nodes if one.name in weights]
        found = listed_module(read[0]) if read else block
        if not runs or found != block:
            block = found
            runs.append([])
        runs[-1].append(node)
    contents = list(map(content, runs))
    often = Counter(contents)
    if max(often.values(), default=1) == 1:
        return None
    part_of: dict[fx.Node, int] = {}
    part, in_between = 0, False
    for run, one in zip(runs, contents, strict=True):
        if often[one] > 1 or not in_between:
            part += 1
        in_between = often[one] == 1
        part_of |= dict.fromkeys(run, part)
    return split_into_tuples(module, module, part_of.__getitem__)


def content(nodes: Iterable[fx.Node]) -> Hashable:
    """Return what equal parts of graphs have in common: all but names; constants are unlike."""
    names: dict[fx.Node, str] = {}

    def name(node: fx.Node) -> str:
        if node.op == "get_attr":
            return f"constant {node.target}"
        return names.setdefault(node, f"value {len(names)}")

    found = []
    for node in nodes:
        target = "" if node.op == "placeholder" else str(node.target)
        found.append(
            (node.op, target, repr(fx.map_arg((node.args, node.kwargs), name)), name(node))
        )
    return tuple(found)
