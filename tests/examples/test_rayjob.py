"""The example of a RayJob has the form that KubeRay takes."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from drlpp.cli.main import main
from tests.support.programs.shell import finish

EXAMPLE = Path("examples/rayjob.yaml")
SCHEMA = json.loads(Path("tests/data/kuberay/rayjob.schema.json").read_text())


@pytest.fixture
def job() -> Any:
    return yaml.safe_load(EXAMPLE.read_text())


def test_the_example_is_valid(job: Any) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(job, SCHEMA)


def test_what_is_no_rayjob_is_found(job: Any) -> None:
    """Or the test before would say nothing: names, types and what is missing, at every depth."""
    cluster = job["spec"]["rayClusterSpec"]
    (worker,) = cluster["workerGroupSpecs"]
    container = worker["template"]["spec"]["containers"][0]
    for place, key, value in (
        (job["spec"], "entryPoint", "python train_agent.py"),
        (cluster["authOptions"], "mode", "secret"),
        (cluster["headGroupSpec"]["rayStartParams"], "num-cpus", 0),
        (worker, "replicas", "2"),
        (container["resources"], "limit", {}),
        (container, "env", [{"name": "A", "value": 1}]),
    ):
        before = dict(place)
        place[key] = value
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(job, SCHEMA)
        place.clear()
        place.update(before)
    del worker["template"]
    with pytest.raises(jsonschema.ValidationError, match="'template' is a required property"):
        jsonschema.validate(job, SCHEMA)


def test_its_program_takes_these_options(job: Any) -> None:
    program, script, *options = job["spec"]["entrypoint"].split()
    assert (program, script) == ("python", "train_agent.py")
    help_ = finish(main, "drlpp", "learn", "--help")
    assert help_.code == 0
    assert all(option in help_.out for option in options if option.startswith("--"))
    assert job["spec"]["rayClusterSpec"]["rayVersion"] in Path("constraints.txt").read_text()
