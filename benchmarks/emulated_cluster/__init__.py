"""A cluster on one Linux machine: to try the project on several hosts without having them.

    python -m benchmarks.emulated_cluster run benchmarks/clusters/two-hosts.yaml -- COMMAND …

How it is made, and what it cannot show: ``README.md`` beside this file.
"""

from benchmarks.emulated_cluster.emulation import (
    EmulatedCluster,
    available,
    ended_by_signals,
    remove_leftovers,
)

__all__ = ["EmulatedCluster", "available", "ended_by_signals", "remove_leftovers"]
