"""The tables of docs/papers.md: ours, the paper's, and which of its claims hold."""

from __future__ import annotations

from benchmarks.paper_tables.result_files import Results
from benchmarks.paper_tables.tables.claims import NOT_YET
from benchmarks.paper_tables.tables.drl_pp_table import drl_pp_section
from benchmarks.paper_tables.tables.pipedream_table import pipedream_section
from benchmarks.paper_tables.tables.pipemare_table import pipemare_section
from benchmarks.paper_tables.tables.pipeoptim_table import pipeoptim_section

BEGIN = "<!-- results: written by benchmarks.paper_tables -->"
END = "<!-- end of results -->"


def report(results: Results) -> str:
    """Return all sections."""
    machines = sorted(
        {timing.machine for timing in results.timings}
        | {sample.machine for sample in results.throughput}
    )
    return "\n".join(
        [
            "Timed on: " + ("; ".join(machines) or NOT_YET) + ".\n",
            pipedream_section(results.timings, results.trainings),
            pipeoptim_section(results.throughput, results.memory, results.pipeoptim),
            pipemare_section(results.pipemare),
            drl_pp_section(results.drl_pp),
        ]
    )
