"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

DocumentOption = Annotated[
    Path | None,
    typer.Option("--document", help="Write the tables into this page, between its marks."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
WorkersClusterOption = Annotated[
    str | None,
    typer.Option(help="Address of a Ray cluster that has the workers, or `auto`; else this host."),
]
ProcessesOption = Annotated[
    int, typer.Option("--processes", min=1, help="Runs at the same time on this machine.")
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="Address of a Ray cluster whose hosts run them instead (benchmarks/README.md).",
    ),
]
