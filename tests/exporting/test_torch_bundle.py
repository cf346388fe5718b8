"""What torch makes of a bundle and of its schedule, against the reference executor."""

import json
import re
import shutil
from collections import deque
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributed.pipelining import schedules

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.errors import InvalidInput
from drlpp.exporting.chain import schedule_csv
from drlpp.exporting.nearest import Nearest, nearest_chain
from drlpp.exporting.torch_bundle import PACKAGE, write_bundle
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.placement import Placement
from drlpp.runtime import Minibatches, RunOptions
from drlpp.runtime.reference.reference import ReferenceExecutor
from drlpp.schedule.method import Method
from drlpp.specs.batches import tensors_in
from drlpp.specs.optimizer_spec import OptimizerSpec, ParameterGroup
from drlpp.torch_versions import pipelines_take_functions
from tests.support.models import structured, tied
from tests.support.programs.without import torchrun
from tests.support.training.pipelines import in_a_row, random_order

if not pipelines_take_functions():
    pytest.skip("this torch has no custom functions", allow_module_level=True)

SEED = 3
STEPS = 2

SGD = OptimizerSpec(name="sgd", options={"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01})
ADAM = OptimizerSpec(name="adam", options={"lr": 0.01, "weight_decay": 0.01, "eps": 1e-4})

GPIPE = Method(schedule="gpipe", policy="sync", microbatches=4, clip_norm=0.5)
FLUSHED = Method(schedule="1f1b-flush", policy="sync", microbatches=2, accumulate=3)

DRIVER = """
import os
import sys
import torch
import torch.distributed as dist
from importlib import import_module

dist.init_process_group("gloo")
for name in sys.argv[1:]:
    data = torch.load(f"{name}-data.pt")
    pipeline = import_module(f"{name}.pipeline").Pipeline(torch.device("cpu"))
    facts = pipeline.facts
    for step in range(%d):
        take = data["order"][step * facts.minibatches:][:facts.minibatches].flatten()
        pipeline.step([values[take] for values in data["inputs"]], data["targets"][take])
    state = pipeline.state()
    if state is not None:
        torch.save(state, f"{name}.pt")
assert "drlpp" not in sys.modules
dist.barrier()
dist.destroy_process_group()
# On a busy machine torch's threads sometimes abort a process that is ending anyway.
os._exit(0)
"""


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    """Embedding, LSTM, convolution, batch normalisation, attention, dropout, a skip; float64."""
    return capture(ModelReference.named("tests.support.models.small:forked"), seed=1)


def order(captured: CapturedModel) -> Tensor:
    samples = captured.task.batch_size
    return random_order(samples, STEPS * FLUSHED.accumulate, samples)


def nearest_of(captured: CapturedModel, placement: Placement, method: Method) -> Nearest:
    workers = 1 + max(placement.accelerators)
    plan = ExecutionPlan.of(Candidate(placement, method), captured.graph, workers)
    return nearest_chain(plan, captured.task.batch_size)


def reference_state(
    captured: CapturedModel, nearest: Nearest, optimizer: OptimizerSpec
) -> dict[str, Tensor]:
    """What our reference has after the same minibatches."""
    candidate, task = nearest.candidate, captured.task
    together = candidate.method.accumulate
    minibatches = Minibatches(task.inputs, task.targets)
    executor = ReferenceExecutor(
        captured, candidate.placement, minibatches, candidate.method, optimizer, SEED
    )
    for step in range(STEPS):
        first = step * together
        executor.run(together, RunOptions(order=order(captured)[first:], first_minibatch=first))
    return executor.state


@pytest.mark.system
def test_trained_on_four_ranks_without_drlpp_as_by_our_reference(
    captured: CapturedModel, tmp_path: Path
) -> None:
    """All in one start of the ranks.

    A skip passes through two stages. The decoder of ``translating`` reads target tokens, and
    positions that no state_dict holds. ``own`` has inputs by keyword and a loss of its own. Of
    ``shared`` a weight is on stages 0 and 1, one on 0, 2 and 3; each counts once in the norm for
    clipping.
    """
    reference = ModelReference.named("tests.support.models.translating:translating")
    translating = capture(reference.model_copy(update={"options": {"dtype": "float64"}}))
    assert translating.constants
    own = capture(structured.own_loss())
    shared = capture(ModelReference.named("tests.support.models.tied:tied"), seed=1)
    straight = tied.placements(shared)["straight"]
    assert list(straight.ties(shared.graph)) == [(0, 1), (0, 2, 3)]
    clipped = FLUSHED.model_copy(update={"clip_norm": 0.05})
    trainings = {
        "gpipe": (captured, GPIPE, ADAM),
        "flushed": (captured, FLUSHED, ADAM),
        "inputs": (translating, GPIPE.model_copy(update={"microbatches": 2}), SGD),
        "own": (own, FLUSHED, SGD),
        "shared": (shared, GPIPE, SGD),
        "clipped": (shared, clipped, SGD),
    }
    nearest = {}
    for name, (model, method, optimizer) in trainings.items():
        placement = straight if model is shared else in_a_row(model.graph, 0, 1, 2, 3)
        nearest[name] = nearest_of(model, placement, method)
        write_bundle(model, nearest[name], optimizer, tmp_path / f"{name}-folder", SEED)
        shutil.move(tmp_path / f"{name}-folder" / PACKAGE, tmp_path / name)
        task = model.task
        (targets,) = tensors_in(task.targets)
        data = {"inputs": tensors_in(task.inputs), "targets": targets, "order": order(model)}
        torch.save(data, tmp_path / f"{name}-data.pt")
    (tmp_path / "driver.py").write_text(DRIVER % STEPS)
    torchrun(4, "driver.py", *trainings, folder=tmp_path)
    for name, (model, _, optimizer) in trainings.items():
        found = torch.load(tmp_path / f"{name}.pt")
        wanted = reference_state(model, nearest[name], optimizer)
        torch.testing.assert_close(
            found, wanted, rtol=1e-10, atol=1e-12, msg=lambda text, at=name: f"{at}: {text}"
        )
        moved = next(key for key, value in wanted.items() if value.dim() > 1)
        assert not torch.equal(found[moved], model.state[moved]), name
    rebuilt = shared.reference.build()
    rebuilt.module.load_state_dict(torch.load(tmp_path / "shared.pt"))


def test_a_bundle_says_how_to_give_inputs_and_refuses_several_targets(tmp_path: Path) -> None:
    own, several = capture(structured.own_loss()), capture(structured.by_keyword())
    write_bundle(own, nearest_of(own, in_a_row(own.graph, 0, 1), GPIPE), SGD, tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "a tuple in this order: ['extra']['numbers'][0], ['extra']['numbers'][1]" in text
    assert "give `torch.empty(len(inputs[0]), 0)` as targets" in text
    nearest = nearest_of(several, in_a_row(several.graph, 0, 1), GPIPE)
    with pytest.raises(InvalidInput, match=r"one tensor .*targets\['number'\], targets\['words'\]"):
        write_bundle(several, nearest, SGD, tmp_path / "other")


@pytest.mark.system
def test_the_program_of_a_bundle_trains_on_a_users_data(
    captured: CapturedModel, tmp_path: Path
) -> None:
    nearest = nearest_of(captured, in_a_row(captured.graph, 0, 1), FLUSHED)
    write_bundle(captured, nearest, SGD, tmp_path / "out", SEED)
    facts = tmp_path / "out" / PACKAGE / "facts.json"
    facts.write_text(json.dumps(json.loads(facts.read_text()) | {"torch": "2.99.0"}))
    task = captured.task
    torch.save((task.inputs, task.targets, order(captured)), tmp_path / "data.pt")
    (tmp_path / "own_data.py").write_text(
        "import torch\n"
        "def minibatches():\n"
        "    inputs, targets, order = torch.load('data.pt')\n"
        "    for take in order:\n"
        "        yield tuple(values[take] for values in inputs), targets[take]\n"
    )
    options = ["--minibatches", "6", "--data", "own_data:minibatches", "--save", "weights.pt"]
    done = torchrun(2, "out/run.py", *options, folder=tmp_path)
    assert "minibatch 3: loss" in done.stdout
    assert f"made for torch 2.99.0, and this is torch {torch.__version__}" in done.stderr
    found, wanted = torch.load(tmp_path / "weights.pt"), reference_state(captured, nearest, SGD)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    done = torchrun(2, "out/run.py", "--minibatches", "4", folder=tmp_path, check=False)
    assert done.returncode
    assert "a step takes 3, so give a multiple of it" in done.stderr


def test_what_a_bundle_cannot_do_is_named(
    captured: CapturedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grouped = OptimizerSpec.parse("adam", [ParameterGroup.parse("*.bias", lr=0.1)])
    own = OptimizerSpec.parse("tests.support.models.lion:Lion", lr=0.003)
    nearest = nearest_of(captured, in_a_row(captured.graph, 0, 1), GPIPE)
    for optimizer, message in ((own, "is not torch's"), (grouped, "has parameter groups")):
        with pytest.raises(InvalidInput, match=message):
            write_bundle(captured, nearest, optimizer, tmp_path)
    monkeypatch.delattr(schedules._PipelineScheduleRuntime, "register_custom_function")
    with pytest.raises(InvalidInput, match=r"export with torch 2\.13"):
        write_bundle(captured, nearest, SGD, tmp_path)


def test_replicas_recomputation_and_16_bits_are_left_out_in_words(captured: CapturedModel) -> None:
    method = Method(schedule="gpipe", policy="sync", recompute=True, precision="bfloat16")
    nearest = nearest_of(captured, in_a_row(captured.graph, 0, 0, 1), method)
    assert [note.partition(";")[0].partition(":")[0] for note in nearest.notes] == [
        "stage 0 has 2 replicas",
        "recompute",
        "precision bfloat16",
    ]
    assert nearest.candidate.configuration == "1-1"
    assert nearest.candidate.method == Method(schedule="gpipe", policy="sync")


if not pipelines_take_functions():
    pytest.skip("this torch has no custom functions", allow_module_level=True)

FLUSHING = [
    Method(schedule="gpipe", policy="sync", microbatches=4),
    Method(schedule="1f1b-flush", policy="sync", microbatches=4),
    Method(schedule="1f1b-flush", policy="sync", microbatches=2, accumulate=3),
]
STAGES = (1, 2, 3, 4)

Rows = list[list[str]]


def exported(method: Method, stages: int) -> Rows:
    """With sends and receives where torch's runtime places them when it reads the rows."""
    rows = [line.split(",") for line in schedule_csv(stages, method).splitlines()]
    actions = {
        rank: [action for cell in row if (action := schedules._Action.from_str(cell))]
        for rank, row in enumerate(rows)
    }
    lowered = schedules._add_send_recv(actions, lambda stage: stage, stages)
    return [[str(action) for action in lowered[rank]] for rank in sorted(lowered)]


def simulated_by_torch(rows: Rows) -> None:
    """Raises where the schedule does not progress."""
    order = {k: [schedules._Action.from_str(cell) for cell in row] for k, row in enumerate(rows)}
    played = schedules._simulate_comms_compute(order, lambda stage: stage, len(rows))
    done = sum(action is not None for row in played.values() for action in row)
    assert done == sum(len(row) for row in order.values())


def meet(rows: Rows) -> None:
    """Play the rows where a send ends when its receive begins, and neither is overtaken.

    torch's simulator lets a send end at once, as Gloo does and NCCL does not.
    """
    left = [deque(row) for row in rows]
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(left):
            while row and not re.search("SEND|RECV", row[0]):
                row.popleft()
                moved = True
            if not row or "SEND" not in row[0]:
                continue
            stage, kind, part = re.fullmatch(r"(\d+)SEND_(F|B)(\d+)", row[0]).groups()
            other = rank + (1 if kind == "F" else -1)
            if left[other] and left[other][0] == f"{other}RECV_{kind}{part}":
                assert int(stage) == rank
                row.popleft()
                left[other].popleft()
                moved = True
    assert not any(left), [row[0] for row in left if row]


@pytest.mark.parametrize(("method", "stages"), list(product(FLUSHING, STAGES)))
def test_nobody_waits_for_ever(method: Method, stages: int) -> None:
    rows = exported(method, stages)
    assert len(rows) == stages
    simulated_by_torch(rows)
    meet(rows)
    order = {k: [schedules._Action.from_str(cell) for cell in row] for k, row in enumerate(rows)}
    parts = method.microbatches * method.accumulate
    schedules._validate_schedule(order, stages, stages, parts)
