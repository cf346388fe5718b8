"""Writing a profile as PipeDream's ``graph.txt``, for its optimizer and others that read it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from drlpp.costs.profile import Profile
from drlpp.io.documents import write_atomically

_MILLISECONDS_PER_SECOND = 1e3


def write_pipedream_profile(
    path: str | Path, profile: Profile, stage_of: Sequence[int] | None = None
) -> None:
    """Write a node for every operator, in milliseconds and bytes.

    An operator that PipeDream's own file had keeps its node; others are ``node1``, ``node2``, …
    What an operator keeps for its backward, and what passes take whatever they compute, has no
    place in the file.

    Args:
        path: of the file.
        profile: a model and its costs.
        stage_of: the stage of every operator, written as PipeDream's optimizer writes its result.
    """
    graph = profile.graph
    nodes = [
        op.module if op.name.endswith(f" {op.module}") else f"node{op.id + 1}"
        for op in graph.operators
    ]
    lines = []
    for operator, cost, node in zip(graph.operators, profile.operators, nodes, strict=True):
        sizes = [f"{output.bytes_:.1f}" for output in operator.outputs] or ["0.0"]
        fields = {
            "forward_compute_time": repr(cost.forward_seconds * _MILLISECONDS_PER_SECOND),
            "backward_compute_time": repr(cost.backward_seconds * _MILLISECONDS_PER_SECOND),
            "activation_size": sizes[0] if len(sizes) == 1 else f"[{'; '.join(sizes)}]",
            "parameter_size": f"{operator.parameter_bytes:.3f}",
        }
        description = operator.name.removesuffix(f" {node}").replace(" -- ", " - ")
        values = ", ".join(f"{name}={value}" for name, value in fields.items())
        stage = "" if stage_of is None else f" -- stage_id={stage_of[operator.id]}"
        lines.append(f"{node} -- {description} -- {values}{stage}\n")
    pairs = sorted({(edge.source, edge.target) for edge in graph.edges})
    lines += [f"\t{nodes[source]} -- {nodes[target]}\n" for source, target in pairs]
    write_atomically(Path(path), "".join(lines).encode())
