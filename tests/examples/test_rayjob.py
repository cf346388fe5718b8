"""The example of a RayJob starts a program with options that it has."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from drlpp.cli.main import main
from tests.support.programs.shell import finish

EXAMPLE = Path("examples/rayjob.yaml")


@pytest.fixture
def job() -> Any:
    return yaml.safe_load(EXAMPLE.read_text())


def test_its_program_takes_these_options(job: Any) -> None:
    program, script, *options = job["spec"]["entrypoint"].split()
    assert (program, script) == ("python", "train_agent.py")
    help_ = finish(main, "drlpp", "learn", "--help")
    assert help_.code == 0
    assert all(option in help_.out for option in options if option.startswith("--"))
    assert job["spec"]["rayClusterSpec"]["rayVersion"] in Path("constraints.txt").read_text()
