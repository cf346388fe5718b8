"""An export for torchtitan, trained by torchtitan itself on its own Llama 3, on CPU."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch

from drlpp.capturing.capture import capture
from drlpp.costs.profiles.estimated_profile import estimate_profile
from drlpp.exporting.layouts.module_layout import nearest_layout, units_of
from drlpp.exporting.layouts.programs import TORCHTITAN_CONTAINERS, write_torchtitan
from drlpp.exporting.nearest import Nearest
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.schedule.method import Method
from tests.exporting.layouts.programs import titan_llama
from tests.support.programs.without_drlpp import torchrun
from tests.support.training.in_microbatches import train_in_microbatches
from tests.support.training.pipelines import in_a_row

pytestmark = pytest.mark.parsers

METHOD = Method(schedule="1f1b-flush", policy="sync", microbatches=4, accumulate=2)
OPTIMIZERS = {"SGD": 0.1, "Adam": 0.01}
STAGES, STEPS = 3, 20


def test_torchtitan_trains_what_was_exported(tmp_path: Path) -> None:
    """The parameters of every stage are ours, and their values plain PyTorch's."""
    llama = capture(ModelReference.named(f"{titan_llama.__name__}:llama"))
    graph, module, loss = llama.graph, llama.task.module, llama.task.loss
    units = units_of(module, graph, TORCHTITAN_CONTAINERS)
    nearest = Nearest(Candidate(in_a_row(graph, *range(STAGES)), METHOD), ())
    layout = nearest_layout(nearest, graph, units, estimate_profile(graph).seconds)
    write_torchtitan(layout, titan_llama.BATCH, (), tmp_path / "titan")
    shape = (STEPS, METHOD.accumulate * titan_llama.BATCH, titan_llama.LENGTH)
    inputs, targets = torch.randint(
        titan_llama.VOCABULARY, (2, *shape), generator=torch.Generator().manual_seed(1)
    )
    samples = {"inputs": inputs, "targets": targets}
    start = {"weights": module.state_dict(), "optimizers": OPTIMIZERS}
    torch.save(samples | start, tmp_path / "data.pt")
    program = Path(titan_llama.__file__).with_name("titan_training.py")
    torchrun(STAGES, str(program), folder=tmp_path)
    trained = [torch.load(tmp_path / f"stage{rank}.pt") for rank in range(STAGES)]
    parts = METHOD.microbatches * METHOD.accumulate
    for name, lr in OPTIMIZERS.items():
        plain = deepcopy(module)
        optimizer = getattr(torch.optim, name)(plain.parameters(), lr=lr)
        expected = train_in_microbatches(plain, loss, optimizer, [inputs], targets, parts)
        for rank, stage in enumerate(layout.nearest.candidate.placement.stages):
            modules = {graph.operators[k].module for k in stage.operators}
            own = {one: v for one, v in expected.items() if one.rpartition(".")[0] in modules}
            found = trained[rank][name]
            assert found.keys() == own.keys()
            difference = max((found[one] - own[one]).abs().max().item() for one in own)
            print(f"{name}, stage {rank} of {STAGES}: largest difference {difference:.1e}")
            assert difference <= 1e-6
