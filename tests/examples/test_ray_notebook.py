"""The notebook of a Ray cluster, cell by cell on two hosts; and what the page shows of it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs.documented_commands import ROOT
from tests.support.programs.ray_clusters import ray_cluster

NOTEBOOK = ROOT / "examples" / "ray_cluster.ipynb"
PAGE = ROOT / "docs" / "clusters.md"
PATIENT = "from tests.support.programs.ray_clusters import PATIENT"


def cells() -> list[str]:
    """The code cells, in their order."""
    notebook = json.loads(NOTEBOOK.read_text())
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.mark.system
@pytest.mark.timeout(400)
def test_its_cells_run_one_after_the_other_on_the_hosts_of_a_cluster(tmp_path: Path) -> None:
    """In a program that has read them from nowhere, as a kernel; on a machine that is busy."""
    patient = [
        cell.replace('cluster="auto"', 'cluster="auto", time_limits=PATIENT') for cell in cells()
    ]
    run = "import json, sys; names = {}\nfor cell in json.load(sys.stdin): exec(cell, names)"
    with ray_cluster((2, 2)) as cluster:
        done = subprocess.run(
            [sys.executable, "-c", run],
            input=json.dumps([PATIENT, *patient]),
            env={**cluster.environment, "RAY_ADDRESS": cluster.address},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    session, measured, trained = done.stdout.splitlines()
    assert session == "4 workers on 2 hosts"
    assert re.fullmatch(r"[1-4](-[1-4])*: \d+\.\d ms a minibatch", measured)
    loss = re.fullmatch(r"loss (\d\.\d{3}) after 3 epochs", trained)
    assert loss is not None
    # Of ten classes that the pixels tell, it has learned something.
    assert float(loss[1]) < 2.0
    assert (tmp_path / "runs" / "notebook" / "model.pt").exists()


def test_the_page_shows_a_cell_of_it() -> None:
    section = PAGE.read_text().partition("\n## A notebook\n")[2].partition("\n## ")[0]
    shown = re.findall(r"```python\n(.*?)\n```", section, re.DOTALL)
    assert shown
    assert set(shown) <= set(cells())
