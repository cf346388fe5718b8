"""A cluster on one Linux machine: to try the project on several hosts without having them.

    python -m benchmarks.emulated_cluster run benchmarks/clusters/two-hosts.yaml -- COMMAND …

How it is made, and what it cannot show: ``README.md`` beside this file.
"""

from benchmarks.emulated_cluster.control_groups import LEAST_SPEED, ControlGroups
from benchmarks.emulated_cluster.emulation import (
    EmulatedCluster,
    available,
    ended_by_signals,
    remove_leftovers,
)
from benchmarks.emulated_cluster.job import Job

__all__ = [
    "LEAST_SPEED",
    "EmulatedCluster",
    "available",
    "ended_by_signals",
    "Job",
    "ControlGroups",
    "remove_leftovers",
]
