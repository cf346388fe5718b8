"""The notebook does what its outputs say, where torch is not installed."""

import json
import subprocess
import sys
from pathlib import Path

from tests.support.programs.without import without_packages

NOTEBOOK = Path(__file__).parents[2] / "examples" / "own_costs.ipynb"


def test_every_cell_prints_what_the_notebook_shows() -> None:
    notebook = json.loads(NOTEBOOK.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    between = "print('-' * 9)"
    program = f"\n{between}\n".join("".join(cell["source"]) for cell in cells)
    keep = "numpy networkx pydantic pyyaml rich"
    ran = subprocess.run(
        [sys.executable, "-c", without_packages(program, keep)], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    shown = ["".join(part for out in cell["outputs"] for part in out["text"]) for cell in cells]
    assert ran.stdout.split("---------\n") == shown
