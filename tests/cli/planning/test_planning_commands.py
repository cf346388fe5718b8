"""``drlpp plan``, ``profile`` and ``cluster describe``, as a user types them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from drlpp.capturing.capture import capture
from drlpp.costs.profile import Profile, RunFactors
from drlpp.costs.profiles.estimated_profile import estimate_profile
from drlpp.io.documents import read_document, write_document
from drlpp.models.model_reference import ModelReference
from drlpp.placement.placement_file import read_placement
from tests.support.planning.command_inputs import LINKS
from tests.support.programs.shell import Shell
from tests.support.strategies.graphs import tied_chain

TABLE = """\
name,forward_ms,backward_ms,output_bytes,parameter_bytes
Conv,2.0,4.0,8,4
Linear,1.0,2.0,8,400
"""


EXACT = ("--planner", "exact")
NOAM = ("--method-option", "in_flight_per_link=0")


def test_a_plan_is_explained(shell: Shell, profile: Path) -> None:
    code, out, _ = shell("plan", "--profile", profile, *LINKS, *EXACT, *NOAM)
    assert code == 0
    assert "planned by exact" in out
    assert "simulated: 6.50 s per minibatch in steady state, 8.3% above the rule's bound" in out
    assert "bound: 6.00 s per minibatch, compute of stage 0" in out
    assert "memory: stage 1 needs the most" in out
    assert "proven" in out


def test_every_prediction_has_the_error_bar_of_short_runs(
    shell: Shell, profile: Path, tmp_path: Path
) -> None:
    """Replicas were off by a quarter, pipelines by 6%, and a single accelerator is not known."""
    costs = read_document(profile, Profile)
    factors = {
        "in_pipeline": RunFactors(spread=0.06),
        "replicated": RunFactors(seconds=1.02, spread=0.25),
    }
    known = write_document(tmp_path / "known.json", costs.model_copy(update=factors))
    given = ("plan", "--profile", known, *LINKS)
    found = shell.json(*given)
    bars = {(plan["configuration"], plan["error_bar"]) for plan in (found, *found["others"])}
    assert bars == {("1", None), ("1-1", 0.06), ("2", 0.25)}
    text = " ".join(shell(*given)[1].split())
    assert re.search(r"simulated: [0-9.]+ s ± 6% per minibatch in steady state", text)
    assert re.search(r"also proposed .*data-parallel 2 [0-9.]+ s ± 25%", text)
    assert "one accelerator 1 12.00 s" in text
    assert "one accelerator 1 12.00 s ±" not in text
    # A profile without short runs says nothing of it.
    without = ("plan", "--profile", profile, *LINKS)
    assert "±" not in shell(*without)[1]
    assert shell.json(*without)["error_bar"] is None


def test_a_plan_says_how_late_its_gradients_are(shell: Shell, profile: Path) -> None:
    planned = ("plan", "--profile", profile, *LINKS, *EXACT)
    late = (
        "between the forward and the backward of a minibatch on stages 0 to 1 come {} and 0 updates"
    )
    assert late.format(1) in " ".join(shell(*planned, *NOAM)[1].split())
    option = ("--method-option", "in_flight_per_link=2")
    deeper = shell.json(*planned, *option)["staleness"]
    assert deeper.startswith(late.format(3))
    assert "times the samples of plain PyTorch" in deeper
    flushed = shell.json(*planned, "--policy", "sync", "--method-option", "schedule=gpipe")
    assert "staleness" not in flushed


def test_a_plan_tells_what_shared_weights_cost(shell: Shell, tmp_path: Path) -> None:
    """An embedding of 8 bytes that is the output layer too, on links of 16 bytes a second."""
    path = write_document(tmp_path / "profile.json", tied_chain([6, 6, 6], 8))
    links = ("--workers", 3, "--planner", "gpipe", "--policy", "stash", "--bandwidth")
    code, out, _ = shell("plan", "--profile", path, *links, 16)
    assert code == 0
    text = " ".join(out.split())
    assert "wte is on stages 0 and 2: 8 bytes summed for each update, 500" in text
    found = shell.json("plan", "--profile", path, *links, 16)
    assert found["shared_weights"][0]["stages"] == [0, 2]
    code, out, _ = shell("show", path)
    assert "operators 0, 2 share wte (8 bytes), each stage a copy" in " ".join(out.split())


def test_the_search_is_the_default_and_no_slower_than_any_baseline(
    shell: Shell, profile: Path
) -> None:
    """In the simulator; a link of 1 byte/s needs more in flight."""
    links = ("--workers", 3, "--bandwidth", 2)
    found = shell.json("plan", "--profile", profile, *links)
    assert found["method"] == "search"
    seconds = found["simulated_seconds_per_minibatch"]
    assert found["lower_bound"] <= seconds
    assert all(seconds <= other["simulated_seconds_per_minibatch"] for other in found["others"])
    assert {"data-parallel", "one accelerator"} <= {o["method"] for o in found["others"]}
    for method in ("exact", "data-parallel", "gpipe", "pipedream"):
        own = shell.json("plan", "--profile", profile, *links, "--planner", method)
        assert own["simulated_seconds_per_minibatch"] >= seconds * (1 - 1e-9)
    code, out, _ = shell("plan", "--profile", profile, *links)
    assert code == 0
    text = " ".join(out.split())
    assert "simulated: " in text
    assert "candidates" in text
    assert "also proposed (simulated): " in text
    assert "gap: no placement takes less than " in text
    fixed = shell.json("plan", "--profile", profile, *links, *NOAM)
    assert fixed["in_flight_per_link"] == 0
    assert fixed["simulated_seconds_per_minibatch"] >= seconds * (1 - 1e-9)


def test_a_table_of_costs_and_unequal_accelerators(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "costs.csv"
    path.write_text(TABLE)
    given = ("plan", "--profile", path, "--bandwidth", 1e5)
    equal = shell.json(*given, *EXACT, "--workers", 2)
    assert equal["seconds_per_minibatch"] == pytest.approx(0.0045)
    assert equal["configuration"] == "2"
    unequal = shell.json(*given, "--workers", 2, "--speeds", "0.5,1")
    assert unequal["seconds_per_minibatch"] == pytest.approx(0.006)
    assert [stage["accelerators"] for stage in unequal["stages"]] == [[1], [0]]
    code, _, err = shell(*given, *EXACT, "--workers", 2, "--speeds", "0.5,1")
    assert code != 0
    assert "accelerators of one speed and memory" in err


def test_a_model_is_profiled_planned_and_exported(shell: Shell, tmp_path: Path) -> None:
    model = "tests.support.models.small:perceptron"
    profile, cluster = tmp_path / "profile.json", tmp_path / "cluster.yaml"
    code, out, err = shell("profile", model, "-o", profile, "--workers", 2)
    assert code == 0, err
    assert "13 operators" in out
    placement = tmp_path / "placement.json"
    code, _, err = shell("plan", model, "--profile", profile, "--cluster", cluster, "-o", placement)
    assert code == 0, err
    assert read_placement(placement).found_by == "search"
    code, _, err = shell(
        "plan", model, "--model-option", "layers=2", "--profile", profile, "--cluster", cluster
    )
    assert code == 2
    assert "profile this model again" in err


def test_a_profile_names_the_users_model(shell: Shell, tmp_path: Path) -> None:
    """And the command that the plan ends with trains it, in a folder whose name needs quotes."""
    model = ModelReference.named("tests.support.models.small:perceptron", layers=3)
    write_document(tmp_path / "profile.json", estimate_profile(capture(model).graph))
    written = tmp_path / "a folder" / "placement.json"
    code, out, err = shell(
        *("plan", "--profile", tmp_path / "profile.json", *LINKS, "-o", written), *EXACT
    )
    assert code == 0, err
    assert read_placement(written).model == model
    (said,) = re.findall(r"^train with it: drlpp (.*)$", out, re.MULTILINE)
    *words, _ = shlex.split(said)
    assert words == ["train", str(written), "--model", model.name, "--data"]
    code, _, err = shell(*words, "tests.support.models.small:separable", "--epochs", 1)
    assert code == 0, err
