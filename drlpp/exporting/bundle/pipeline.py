"""One rank's stage in torch's pipeline runtime.

Everything that torch may rename is imported here: torch calls parts of its pipelining private.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .support import FOLDER, begin_pass, read_facts, version_note

try:
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
except ImportError as error:
    raise ImportError(f"{version_note(read_facts()) or error}") from error


class Pipeline:
    """The stage of this rank; all ranks make the same calls.

    Args:
        device: to compute on.

    Attributes:
        facts: of the bundle.
        stage: the module of this rank, with its weights under their own names.
        optimizer: of its weights; None if it has none. Its learning rate may be set between steps.

    Raises:
        RuntimeError: there are more or fewer ranks than stages.
    """

    def __init__(self, device: torch.device) -> None:
        self.facts = facts = read_facts()
        self._rank, self._device = dist.get_rank(), device
        if dist.get_world_size() != len(facts.arrives):
            raise RuntimeError(
                f"the bundle has {len(facts.arrives)} stages, one for each rank, and there are "
                f"{dist.get_world_size()} ranks: torchrun --nproc-per-node {len(facts.arrives)}"
            )
        stages = import_module(".stages", __package__)
        stored = torch.load(FOLDER / "weights.pt", mmap=True, weights_only=True)
        self.stage: nn.Module = _filled(
            stages.STAGES[self._rank](), stored["model"] | stored["constants"], device
        )
        self._loss: nn.Module = _filled(stages.Loss(), stored["loss"], device)
        trained = [weight for weight in self.stage.parameters() if weight.requires_grad]
        self.optimizer = _optimizer(facts, trained) if trained else None
        self._ties = _TiedWeights(self.stage, facts.ties)
        self._trained_minibatches = 0
        self._scheduled = _Stage(self.stage, self._rank, facts, device)
        self._schedule = _PipelineScheduleRuntime(
            [self._scheduled], facts.minibatches * facts.microbatches, loss_fn=self._loss_of
        )
        self._schedule._load_csv(str(FOLDER / "schedule.csv"), format="compute_only")

    def step(self, inputs: Sequence[Tensor], targets: Tensor) -> list[float]:
        """Train on the minibatches of a step, one behind the other, samples first.

        A rank uses those inputs that its stage reads; the last one uses the targets.

        Returns:
            the loss of every part, on the last rank; nothing on the others.
        """
        self._scheduled.first_minibatch = self._trained_minibatches
        own = [inputs[index].to(self._device) for index in self.facts.inputs[self._rank]]
        named: dict[str, Any] = {
            f"input_{index}": value
            for index, value in zip(self.facts.inputs[self._rank], own, strict=True)
        }
        losses: list[Tensor] = []
        # The first stage takes inputs by position; torch keeps those of the others for messages.
        self._schedule.step(
            *(own if self._rank == 0 else ()),
            target=targets.to(self._device) if self._is_last else None,
            losses=losses if self._is_last else None,
            return_outputs=False,
            **({} if self._rank == 0 else named),
        )
        self._update()
        self._trained_minibatches += self.facts.minibatches
        return [loss.item() for loss in losses]

    def state(self) -> dict[str, Tensor] | None:
        """Return all weights and buffers by the model's names, on rank 0; None on the others."""
        own = {name: value.cpu() for name, value in self.stage.state_dict().items()}
        found: list[Any] = [None] * dist.get_world_size()
        dist.gather_object(own, found if self._rank == 0 else None)
        if self._rank:
            return None
        state = torch.load(FOLDER / "weights.pt", weights_only=True)["model"]
        for stage in found:
            state |= {name: value for name, value in stage.items() if name in state}
        return state | {alias: state[name] for alias, name in self.facts.aliases.items()}

    @property
    def _is_last(self) -> bool:
        return self._rank == len(self.facts.arrives) - 1

    def _loss_of(self, outputs: Any, targets: Tensor) -> Tensor:
        loss: Tensor = self._loss(*outputs, targets)
        return loss

    def _update(self) -> None:
        """Perform the update of a step; clipping takes the norm over all stages."""
        self._ties.sum_gradients()
        named = dict(self.stage.named_parameters())
        gradients = {name: w.grad for name, w in named.items() if w.grad is not None}
        if self.facts.clip_norm:
            square = torch.zeros((), dtype=torch.float64, device=self._device)
            for name in gradients.keys() - self._ties.counted_elsewhere:
                gradient = gradients[name]
                square = square + torch.linalg.vector_norm(gradient).square()
            dist.all_reduce(square)
            scale = (self.facts.clip_norm / (square.sqrt() + 1e-6)).clamp(max=1.0)
            for gradient in gradients.values():
                gradient.mul_(scale)
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad()


class _TiedWeights:
    """The copies of this rank, by what stages share; all ranks make one, in the same order.

    The gradients of those ``counted_elsewhere`` count on an earlier stage where the norm of all is
    taken.
    """

    def __init__(self, stage: nn.Module, ties: Sequence[tuple[list[int], list[str]]]) -> None:
        rank, weights = dist.get_rank(), dict(stage.named_parameters())
        self.counted_elsewhere: set[str] = set()
        self._shared: list[tuple[dist.ProcessGroup, nn.Parameter]] = []
        for ranks, names in ties:
            # Every rank takes part in making a group, also of others.
            group = dist.new_group(ranks)
            if rank in ranks:
                self._shared += [(group, weights[name]) for name in names]
                if rank != min(ranks):
                    self.counted_elsewhere |= {*names}

    def sum_gradients(self) -> None:
        """Give every copy the sum of the gradients of all copies."""
        for group, weight in self._shared:
            found = weight.grad
            # One that no stage has a gradient of is left alone.
            known = torch.tensor(float(found is not None), device=weight.device)
            total: Tensor = torch.zeros_like(weight) if found is None else found
            dist.all_reduce(known, group=group)
            dist.all_reduce(total, group=group)
            weight.grad = total if known else None


class _Stage(PipelineStage):
    """Tells random operators which part passes."""

    def __init__(self, stage: nn.Module, rank: int, facts: Any, device: torch.device) -> None:
        super().__init__(
            stage,
            rank,
            len(facts.arrives),
            device,
            input_args=tuple(map(_example, facts.arrives[rank])),
            output_args=tuple(map(_example, facts.leaves[rank])),
        )
        self._facts = facts
        self.first_minibatch = 0

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run the forward of a part."""
        minibatch, microbatch = divmod(fwd_chunk_id, self._facts.microbatches)
        begin_pass(self._facts.seed, self.first_minibatch + minibatch, microbatch)
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)


def _example(spec: tuple[Sequence[int], str]) -> Tensor:
    """Return what torch allocates buffers by; without it, it would run the stage to find out."""
    shape, dtype = spec
    tensor = torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
    return tensor.requires_grad_(tensor.is_floating_point() or tensor.is_complex())


def _filled(module: nn.Module, values: dict[str, Tensor], device: torch.device) -> nn.Module:
    with torch.no_grad():
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            tensor.copy_(values[name])
    return module.to(device)


def _optimizer(facts: Any, weights: list[nn.Parameter]) -> torch.optim.Optimizer:
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in facts.options.items()}
    made: torch.optim.Optimizer = getattr(torch.optim, facts.optimizer)(weights, **options)
    return made
