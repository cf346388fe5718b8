"""What do tied weights, weight policies and bfloat16 cost, in time and memory?

python -m benchmarks.model_costs tied --document docs/models.md
python -m benchmarks.model_costs policies --document docs/models.md
python -m benchmarks.model_costs precision --document docs/models.md
"""

from __future__ import annotations

import json
from typing import Annotated

import typer
from pandas import DataFrame

from benchmarks.machine import this_machine
from benchmarks.model_costs import policies, precision, tied
from benchmarks.model_costs.models import MODELS
from benchmarks.options import DocumentOption, JsonOption
from benchmarks.report import markdown, terminal, write_between
from drlpp.cli.command_line import build_console, run_program

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

Short = Annotated[bool, typer.Option("--short", help="Tiny and once: to see it work.")]


@app.command("tied")
def run_tied(
    short: Short = False, document: DocumentOption = None, as_json: JsonOption = False
) -> None:
    """Time a tied decoder, cut and whole, and the same decoder untied."""
    settings = tied.SHORT if short else tied.Settings()
    _show("tied", DataFrame(tied.rows(settings)), str(settings), document, as_json=as_json)


@app.command("policies")
def run_policies(
    short: Short = False, document: DocumentOption = None, as_json: JsonOption = False
) -> None:
    """Compare versions, memory and time of today's models with what is promised."""
    names = ["ViT"] if short else MODELS
    rows = [row for name in names for row in policies.rows(name)]
    _show("policies", DataFrame(rows), policies.CONDITIONS, document, as_json=as_json)


@app.command("precision")
def run_precision(
    short: Short = False, document: DocumentOption = None, as_json: JsonOption = False
) -> None:
    """Compare time, memory and held-out loss of float32 and bfloat16."""
    settings = precision.SHORT if short else precision.Settings()
    table = DataFrame(precision.rows(settings))
    _show("precision", table, str(settings), document, as_json=as_json)


def _show(
    name: str, table: DataFrame, conditions: str, document: DocumentOption, *, as_json: bool
) -> None:
    conditions = f"{this_machine()}; {conditions}"
    if document is not None:
        begin = f"<!-- {name}: written by benchmarks.model_costs -->"
        text = f"{markdown(table)}\n\n{conditions}"
        write_between(document, begin, f"<!-- end of {name} -->", text)
    if as_json:
        rows = table.to_dict(orient="records")
        print(json.dumps({"conditions": conditions, "rows": rows}, indent=1))
    else:
        console = build_console()
        console.print(terminal(table))
        console.print(conditions)


if __name__ == "__main__":
    run_program(app, "benchmarks.model_costs")
