"""Clusters in racks, and models of the size that would be trained on them."""

from __future__ import annotations

from collections.abc import Callable

import numpy

from drlpp.costs.synthetic_profiles import generate
from drlpp.costs.tensors import Transfer
from drlpp.costs.workload import Workload
from drlpp.specs.cluster import Cluster, Host, Link

SIZES = (64, 1024, 16_384)

_ACCELERATORS_OF_A_HOST = 8
_HOSTS_OF_A_RACK = 32

_LAYERS, _WIDTH, _TOKENS, _VOCABULARY = 96, 12_288, 2048, 50_257
"""Of GPT-3, with 175 billion parameters; a minibatch of one sequence."""
_FLOPS = 1.5e14
"""Of an accelerator, per second, as large products of matrices reach them."""
_PARTS = {"qkv": 3, "attention": 0, "projection": 1, "up": 4, "down": 4}
"""Of a block, with their parameters as multiples of the width squared."""


def racks(accelerators: int) -> Cluster:
    """Return hosts of eight accelerators in racks of 32 hosts."""
    hosts = -(-accelerators // _ACCELERATORS_OF_A_HOST)
    lines = tuple(
        Host(
            name=f"rack-{rack}",
            count=min(_HOSTS_OF_A_RACK, hosts - first),
            accelerators=_ACCELERATORS_OF_A_HOST,
            device="cuda",
            rack=f"rack-{rack}",
        )
        for rack, first in enumerate(range(0, hosts, _HOSTS_OF_A_RACK))
    )
    return Cluster(
        hosts=lines,
        within_host=Link(bandwidth_bytes_per_second=3e11, latency_seconds=2e-6),
        between_hosts=Link(bandwidth_bytes_per_second=5e10, latency_seconds=5e-6),
        between_racks=Link(bandwidth_bytes_per_second=2.5e10, latency_seconds=1e-5),
    )


def gpt_blocks() -> Workload:
    """Return GPT-3 as a chain: embedding, 96 blocks, head."""
    return _chain("GPT-3 by blocks", {"block": sum(_PARTS.values())})


def gpt_operators() -> Workload:
    """Return GPT-3 as a chain of the five products of matrices that each block has."""
    return _chain("GPT-3 by products", _PARTS)


def branching() -> Workload:
    """Return a made-up model of 200 operators in blocks of parallel branches."""
    return Workload.of(generate("blocks", 200, 0))


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "GPT-3, 98 blocks": gpt_blocks,
    "GPT-3, 482 operators": gpt_operators,
    "made up, 200 operators with branches": branching,
}


def _chain(model: str, parts: dict[str, int]) -> Workload:
    squares = [share * _WIDTH**2 for _ in range(_LAYERS) for share in parts.values()]
    vocabulary = _VOCABULARY * _WIDTH
    parameters = numpy.array([vocabulary, *squares, vocabulary], dtype=float)
    # Two operations for each parameter and token; attention has its products of tokens with tokens.
    operations = 2.0 * _TOKENS * numpy.maximum(parameters, 2.0 * _TOKENS * _WIDTH)
    # What is looked up is not multiplied.
    operations[0] = 0.0
    count = len(parameters)
    crossing = 2.0 * _TOKENS * _WIDTH
    forward = operations / _FLOPS
    return Workload(
        model=model,
        names=tuple(f"operator-{number}" for number in range(count)),
        forward_seconds=forward,
        backward_seconds=2 * forward,
        update_seconds=parameters * 1e-11,
        parameter_bytes=2.0 * parameters,
        kept_bytes=numpy.full(count, 4 * crossing),
        edges=tuple((number, number + 1) for number in range(count - 1)),
        transfers=tuple(
            Transfer((number, number + 1), crossing, crossing) for number in range(count - 1)
        ),
    )
