"""drlpp export, as a user calls it."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from drlpp.capturing.capture import capture
from drlpp.cli.main import app
from drlpp.costs.profile import Profile
from drlpp.exporting.bundle.support import read_facts
from drlpp.io.documents import write_document
from drlpp.models.model_reference import ModelReference
from drlpp.placement.placement import Placement
from drlpp.placement.placement_file import read_placement
from drlpp.schedule.method import Method
from drlpp.torch_versions import pipelines_take_functions
from tests.support.training.pipelines import in_a_row
from tests.support.training.placement_files import file_of

GPIPE = Method(schedule="gpipe", policy="sync", microbatches=2)

for_torch = pytest.mark.skipif(
    not pipelines_take_functions(), reason="this torch has another pipeline runtime"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Placements of a decoder in three stages, and of a forked model in branches."""
    folder = tmp_path_factory.mktemp("placements")
    decoder = capture(ModelReference.named("tests.exporting.decoder:decoder"), check=False)
    row = in_a_row(decoder.graph, 0, 1, 2)
    write_document(folder / "decoder.json", file_of(decoder, row))
    write_document(folder / "profile.json", Profile.estimated(decoder.graph))
    forked = capture(ModelReference.named("tests.support.models.small:forked"), check=False)
    branches = Placement.from_assignment([0, 0, 0, 1, 2, 2, 2, *[3] * 9], (0, 3, 2, 1))
    write_document(folder / "forked.json", file_of(forked, branches, GPIPE))
    return folder


def export(placement: Path, *options: str) -> str:
    """What it prints; what it raises is raised."""
    own = read_placement(placement).model.naming_option.split()
    arguments = ["export", str(placement), *own, *options]
    result = CliRunner().invoke(app, arguments, catch_exceptions=True)
    if result.exception is not None:
        raise result.exception
    return result.output


@for_torch
def test_a_bundle_of_an_asynchronous_placement_flushes(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = export(folder / "decoder.json", "--to", "torch", "-o", str(out))
    assert "the pipeline is emptied before every update there, with microbatches: 4" in text
    assert f"train: torchrun --nproc-per-node 3 {out / 'run.py'}" in text
    facts = read_facts(out / "pipelined")
    assert (facts.minibatches, facts.microbatches, facts.optimizer) == (1, 4, "Adam")
    assert "emptied before every update" in (out / "README.md").read_text()
    with pytest.raises(ValueError, match="is there already; name another place"):
        export(folder / "decoder.json", "--to", "torch", "-o", str(out))


@pytest.mark.parametrize(
    "target", [pytest.param("torch", marks=for_torch), "torchtitan", "deepspeed"]
)
def test_what_a_target_cannot_express_is_said_with_what_it_costs(
    folder: Path, tmp_path: Path, target: str
) -> None:
    text = export(folder / "forked.json", "--to", target, "-o", str(tmp_path / "out"))
    assert "note: stages 1 and 2 compute side by side; in the export they follow each other" in text
    assert "with costs made up from sizes (no profile.json beside it)" in text
    assert "rank 1 on accelerator 3 of" in text


def test_a_layout_by_modules(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "layout"
    text = export(folder / "decoder.json", "--to", "deepspeed", "-o", str(out))
    note = "layers.4 is cut inside, over stages 1 and 2; in the export it is in stage 2 as a whole"
    assert f"note: {note}" in text
    assert "with costs of its profile.json" in text
    assert "the pipeline is emptied before every update" in text
    assert "PARTS = [0, 3, 5, 9]" in out.read_text()
    assert note in out.read_text()
