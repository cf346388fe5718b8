"""A page about a captured model: where its weights are, what repeats, where it can be cut."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from rich.filesize import decimal

from drlpp.capturing.graph import OpGraph, SharedParameter

_LARGEST = 5
_LARGE_SHARE = 0.1
"""Of all parameters: an operator with more of them makes stages uneven, since it cannot be cut."""


def report_lines(graph: OpGraph) -> Iterator[str]:
    """Yield the lines of the page, which fits one screen whatever the model."""
    yield (
        f"{len(graph)} operators, {len(graph.edges)} edges, "
        f"{decimal(graph.parameter_bytes)} of parameters"
    )
    yield from _parameters(graph)
    yield from shared_weights(graph)
    yield from _repeating(graph)
    yield from _cuts(graph)


def _parameters(graph: OpGraph) -> Iterator[str]:
    """Say which modules have the weights, and which operators have so many that stages suffer."""
    total = graph.parameter_bytes
    if not total:
        return
    of_module: dict[str, list[int]] = {}
    for operator in graph.operators:
        module = operator.module.partition(".")[0] or "the model itself"
        of_module.setdefault(module, []).append(operator.id)
    sizes = {name: graph.held_parameter_bytes(held) for name, held in of_module.items()}
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:_LARGEST]
    counted = ", with what they share in each" if sum(sizes.values()) > total else ""
    yield f"parameters{counted}: " + ", ".join(
        f"{name} {decimal(size)} ({size / total:.0%})" for name, size in largest if size
    )
    large = sorted(
        (op for op in graph.operators if op.parameter_bytes > _LARGE_SHARE * total),
        key=lambda op: -op.parameter_bytes,
    )
    if large and len(graph) > 1:
        named = ", ".join(f"{op.name} ({op.parameter_bytes / total:.0%})" for op in large)
        yield f"cannot be cut, and have more than a tenth of the parameters each: {named}"


def shared_weights(graph: OpGraph) -> Iterator[str]:
    """Say which operators share a parameter."""
    readers: dict[tuple[int, ...], list[SharedParameter]] = {}
    for shared in graph.shared_parameters:
        readers.setdefault(shared.operators, []).append(shared)
    for operators, found in readers.items():
        names = ", ".join(
            f"{one.name} ({decimal(one.bytes_)}{'' if one.trained else ', frozen'})"
            for one in found
        )
        yield f"operators {', '.join(map(str, operators))} share {names}, each stage a copy"


def _repeating(graph: OpGraph) -> Iterator[str]:
    """Say which operators come again and again; a profile times a few of these blocks."""
    from drlpp.capturing.blocks import KEPT, find_blocks

    taken: set[int] = set()
    for blocks in find_blocks(graph):
        place = range(blocks.begin, blocks.left_out.stop)
        if taken.isdisjoint(place):
            taken.update(place)
            first, last = (graph.operators[op].name for op in (place[0], place[blocks.length - 1]))
            which = f"{first} to {last}" if blocks.length > 1 else first
            plural = "s" if blocks.length > 1 else ""
            yield (
                f"{blocks.copies} equal blocks of {blocks.length} operator{plural}, the first is "
                f"{which}; a profile times {KEPT} of them"
            )


def _cuts(graph: OpGraph) -> Iterator[str]:
    """Say how much a cut between two operators in a row sends forwards, for a minibatch."""
    if len(graph) == 1:
        yield "one operator: no placement can divide it"
        return
    widths = graph.cut_widths()
    narrowest, widest = (widths.index(width) for width in (min(widths), max(widths)))
    yield (
        f"a cut sends {decimal(min(widths))} (behind {graph.operators[narrowest].name}) to "
        f"{decimal(max(widths))} (behind {graph.operators[widest].name}) for a minibatch, "
        f"{decimal(round(median(widths)))} in the median"
    )
