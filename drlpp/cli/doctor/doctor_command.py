"""``drlpp doctor``: what this machine offers, what is missing, and what to do about it."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from drlpp.cli.command_line import build_console, said_if_long
from drlpp.cli.common_options import RefusedWithRecord

_STYLES = {"problem": "bold red", "note": "yellow"}


def examine() -> dict[str, Any]:
    """Look at torch, cores, memory, GPUs, messages and disk, and say what to do about each.

    Ends with exit code 1 if something keeps drlpp from training here.
    """
    from drlpp.cli.doctor.checks import all_checks

    console = build_console()
    with said_if_long("looking at this machine, and starting two workers"):
        findings = [check() for check in all_checks()]
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("found", overflow="fold")
    for finding in findings:
        text = finding.found if finding.advice is None else f"{finding.found}\n→ {finding.advice}"
        table.add_row(finding.name, text, style=_STYLES.get(finding.state))
    console.print(table)
    problems = [finding.name for finding in findings if finding.state == "problem"]
    console.print(
        f"problems: {', '.join(problems)}" if problems else "drlpp can train on this machine"
    )
    record = {"problems": problems, "findings": [finding.record for finding in findings]}
    if problems:
        raise RefusedWithRecord(record)
    return record
