"""Pre-train the policy that fits every model and cluster.

python -m drlpp.cli.learning.pretrain --out agents/pretrained/transfer.safetensors --minutes 35
"""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated

import torch
import typer

from drlpp.agents.pretraining.training import pretrain
from drlpp.agents.transfer.weights import save_weights
from drlpp.cli.command_line import build_console, run_program
from drlpp.cli.commands import program

app = program(add_completion=False)


@app.command()
def main(
    out: Annotated[Path, typer.Option(help="File of weights to write.")],
    minutes: Annotated[float, typer.Option(min=0, help="Of training, on one core.")] = 35.0,
    seed: Annotated[int, typer.Option(help="Of weights and problems.")] = 0,
    start: Annotated[Path | None, typer.Option(help="File of weights to start from.")] = None,
) -> None:
    """Imitate exact optima of made-up problems, then improve on the rule."""
    torch.set_num_threads(1)
    console, begin = build_console(), time.monotonic()

    def report(line: str) -> None:
        console.print(f"{(time.monotonic() - begin) / 60:5.1f} min  {line}")

    network, notes = pretrain(minutes, seed, start, report)
    command = f"python -m drlpp.cli.learning.pretrain --out {shlex.quote(out.name)}"
    command += f" --minutes {minutes:g} --seed {seed}"
    if start is not None:
        command += f" --start {shlex.quote(start.name)}"
    save_weights(network, out, notes | {"command": command})
    console.print(f"{out}: {out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    run_program(app, "drlpp.cli.learning.pretrain")
