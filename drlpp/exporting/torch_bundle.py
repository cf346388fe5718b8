"""``--to torch``: a folder that trains with torch.distributed.pipelining, without drlpp."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import torch

from drlpp.capturing.capture import CapturedModel
from drlpp.capturing.graph import TensorSpec
from drlpp.errors import InvalidInput
from drlpp.exporting.chain import Link, chained, schedule_csv
from drlpp.exporting.nearest import Nearest
from drlpp.exporting.stage_source import loss_tensors, stages_source
from drlpp.runtime.deploying.stage_cutting import cut_stages
from drlpp.specs.batches import named_tensors, tensors_in
from drlpp.specs.data import has_no_targets
from drlpp.specs.optimizer_spec import OptimizerSpec
from drlpp.torch_versions import pipelines_take_functions

PACKAGE = "pipelined"
"""The name of the package in the folder."""

_TEMPLATE = Path(__file__).parent / "bundle"

_RUN = '''"""Train: torchrun --nproc-per-node {stages} run.py"""

from {package}.training import main

if __name__ == "__main__":
    main()
'''

_NO_TARGETS = """
  The model makes its loss of its inputs: give `torch.empty(len(inputs[0]), 0)` as targets."""

_README = """# {model} in {stages} stages

Trains with torch.distributed.pipelining, one rank for each stage. Nothing but torch is needed; it
was made for torch {torch}, and says so when it meets another.

    torchrun --nproc-per-node {stages} run.py --minibatches N --data package.module:function \\
        --save weights.pt

- method: {method}; optimizer: {optimizer}
- minibatches of a step, after which the pipeline is empty: {together}, of {batch_size} samples
- `--data` names a function that gives minibatches `(inputs, targets)`, the inputs a tuple{names};
  every rank calls it, and it gives all of them the same. Without it an example is repeated.{labels}
- `{package}/stages.py` has a module for each stage, with the weights under the model's names
- `{package}/schedule.csv` is what every rank does in a step, as torch writes it

What differs from the placement that it was made of:

{notes}"""


def write_bundle(
    captured: CapturedModel,
    nearest: Nearest,
    optimizer: OptimizerSpec,
    folder: Path,
    seed: int = 0,
    notes: Sequence[str] = (),
) -> str:
    """Write ``run.py`` and the package into a folder, and return how to train with them.

    Args:
        captured: the model, with the weights that the training begins with.
        nearest: a chain of single workers, with a schedule that flushes.
        optimizer: makes the updates.
        folder: is made.
        seed: of dropout.
        notes: what the original placement has that this does not.

    Raises:
        InvalidInput: it cannot be expressed, with what would be right.
    """
    if not pipelines_take_functions():
        raise InvalidInput(
            f"torch {torch.__version__} has another pipeline runtime than the bundle is "
            "written for; export with torch 2.13"
        )
    method, task = nearest.candidate.method, captured.task
    if len(tensors_in(task.targets)) != 1:
        names = [name for name, _ in named_tensors("targets", task.targets)]
        raise InvalidInput(
            f"torch's pipelines take one tensor of targets, and {captured.reference} has "
            f"{', '.join(names)}; join them, or let the model take them as inputs"
        )
    part = captured.microbatch(method.microbatches)
    links = chained(cut_stages(part, nearest.candidate.placement), part)
    facts = _facts(captured, nearest, optimizer, links) | {"seed": seed}
    source = stages_source(links, part, version("drlpp"))
    package = folder / PACKAGE
    package.mkdir(parents=True, exist_ok=True)
    for path in sorted(_TEMPLATE.glob("*.py")):
        shutil.copy(path, package)
    (package / "stages.py").write_text(source)
    (package / "schedule.csv").write_text(schedule_csv(len(links), method))
    (package / "facts.json").write_text(json.dumps(facts, indent=1) + "\n")
    stored = {
        "model": captured.state,
        # What no state_dict holds.
        "constants": captured.constants,
        "loss": loss_tensors(part),
    }
    torch.save(stored, package / "weights.pt")
    (targets,) = tensors_in(task.targets)
    example = {"inputs": list(tensors_in(task.inputs)), "targets": targets}
    torch.save(example, package / "example.pt")
    (folder / "run.py").write_text(_RUN.format(stages=len(links), package=PACKAGE))
    names = [name for name, _ in named_tensors("", task.inputs)]
    readme = _README.format(
        model=captured.reference,
        stages=len(links),
        method=method,
        optimizer=optimizer,
        torch=torch.__version__,
        package=PACKAGE,
        together=method.accumulate,
        batch_size=task.batch_size,
        notes="".join(f"- {note}\n" for note in notes) or "- nothing\n",
        labels=_NO_TARGETS if has_no_targets(task.targets) else "",
        names=f" in this order: {', '.join(names)}" if isinstance(task.inputs, Mapping) else "",
    )
    (folder / "README.md").write_text(readme)
    return f"train: torchrun --nproc-per-node {len(links)} {shlex.quote(str(folder / 'run.py'))}"


def _facts(
    captured: CapturedModel, nearest: Nearest, optimizer: OptimizerSpec, links: Sequence[Link]
) -> dict[str, object]:
    """Return what ``bundle/support.py`` says what it is."""
    method = nearest.candidate.method
    name, options = _optimizer(optimizer)
    inputs = [list(link.program.inputs) for link in links]
    examples = tensors_in(captured.microbatch(method.microbatches).task.inputs)
    arrives = [[_spec(spec) for spec in link.arriving] for link in links]
    arrives[0] = [_spec(TensorSpec.of(examples[i])) for i in inputs[0]]
    return {
        "torch": str(torch.__version__),
        "model": str(captured.reference),
        "minibatches": method.accumulate,
        "microbatches": method.microbatches,
        "batch_size": captured.task.batch_size,
        "optimizer": name,
        "options": options,
        "clip_norm": method.clip_norm,
        "inputs": inputs,
        "arrives": arrives,
        "leaves": [[_spec(spec) for spec in link.leaving] for link in links],
        "aliases": dict(captured.aliases),
        "ties": [
            (list(stages), [shared.name for shared in tied])
            for stages, tied in nearest.candidate.placement.ties(captured.graph).items()
        ],
    }


def _optimizer(spec: OptimizerSpec) -> tuple[str, dict[str, object]]:
    """Return the name of a class of ``torch.optim`` and its arguments."""
    if spec.groups:
        raise InvalidInput(
            f"optimizer {spec.name} has parameter groups, and a bundle trains all parameters of a "
            f"stage alike; export with one for all (--optimizer {spec.name})"
        )
    if ":" in spec.name:
        raise InvalidInput(
            f"optimizer {spec.name} is not torch's, and a bundle takes no code of others along; "
            "export with another (--optimizer sgd)"
        )
    return spec.find().__name__, spec.complete


def _spec(spec: TensorSpec) -> tuple[tuple[int, ...], str]:
    return spec.shape, spec.dtype
