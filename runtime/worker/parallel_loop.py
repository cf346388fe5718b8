"""Training by torch's own data parallelism: what a user has for several accelerators already.

Each of k ranks computes its part of every minibatch, and all make one update of it. The ways differ
in what a rank keeps, and in what it sends, here as a multiple of the model's weights::

    way        a rank keeps whole             it sends for a minibatch
    ddp        weights, gradients, state      sums of gradients: 2 (k-1)/k
    ddp-bf16   likewise                       the same in bfloat16: (k-1)/k of float32
    powersgd   and what compression has lost  products of two narrow matrices
    zero-1     weights, gradients             sums of gradients, new weights: 3 (k-1)/k
    zero-2     weights during a minibatch     weights, and gradients to their owners: 2 (k-1)/k
    fsdp       weights of one block           weights twice, gradients to their owners: 3 (k-1)/k
    local-sgd  weights, gradients, state      averages of weights, once in many minibatches
    diloco     and two more copies of weights likewise

DDP sends while the backward computes. ``fully_shard`` does so on GPUs; on processors it waits for
what it has sent.
"""

from __future__ import annotations

import copy
import fcntl
import os
import socket
import struct
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import partial
from itertools import chain, count, pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_hook,
)
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
    PowerSGDState,
    powerSGD_hook,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from drlpp.costs.ways_of_training import WAYS
from drlpp.models.task import Task
from drlpp.runtime.comm.connections import Member
from drlpp.runtime.comm.pacing import PacedSum
from drlpp.runtime.device.devices import CPU, Accelerator, seed_generator, to_device
from drlpp.runtime.ipc.protocol import (
    GroupSpec,
    ParallelTraining,
    ParallelWay,
    ParallelWork,
    RunResult,
    TrainParallel,
    Working,
)
from drlpp.runtime.ipc.tensor_file import write_tree
from drlpp.runtime.weights.optimizers import build_optimizer
from drlpp.runtime.worker.averages import Averages, OuterSteps
from drlpp.runtime.worker.plain_loop import PlainLoop
from drlpp.specs.batches import Batch, equal_part
from drlpp.specs.optimizer_spec import OptimizerSpec

_PAUSE_SECONDS = 0.1
"""For Gloo's threads to end what is done."""

_RANK, _WHOLE_AT_FIRST = 4, 2
"""Of PowerSGD's narrow matrices, and minibatches before it compresses: the fewest torch allows."""

_ALL_MEGABYTES = 1 << 20

_POWERSGD = "iter", "error_dict", "p_memory_dict", "q_memory_dict"
"""What it continues from."""

_SHARDED: Mapping[str, int] = {
    "all_gather_single": 1,
    "reduce_scatter_single": 1,
    # Before torch 2.13.
    "all_gather_into_tensor": 1,
    "reduce_scatter_tensor": 1,
}
_WAITED_FOR: Mapping[ParallelWay, Mapping[str, int]] = {
    "ddp": {},
    "ddp-bf16": {},
    "powersgd": {"all_reduce": 2},
    "zero-1": {"broadcast": 1},
    "zero-2": _SHARDED,
    "fsdp": _SHARDED,
    "local-sgd": {"all_reduce": 2},
    "diloco": {"all_reduce": 2},
}
"""What of ``torch.distributed`` each way waits for, beside DDP's sums, and its rings (pacing)."""


class ParallelLoop(PlainLoop):
    """One rank's part of the training, in the default process group; every rank has one.

    An emulated accelerator rests for all that it has computed before it sends, and emulated links
    take their time. Waiting for others counts neither as computing nor as being late.

    Args:
        training: a way of the table above, and how it trains; it is not compiled.
        task, accelerator, speed: as in :class:`PlainLoop`.
        paced: what makes a collective take its time on emulated links.
    """

    def __init__(
        self,
        training: ParallelTraining,
        task: Task,
        accelerator: Accelerator,
        speed: float = 1.0,
        paced: Callable[..., dist.Work] | None = None,
    ) -> None:
        self._way = way = training.way
        self._every = training.every
        self._averagers: list[Averages] = []
        self._power_sgd: PowerSGDState | None = None
        self._rank, self._ranks = dist.get_rank(), dist.get_world_size()
        on_processor = accelerator.device.type == "cpu"
        self._random = torch.random if on_processor else torch.get_device_module(accelerator.device)
        self._paced = paced
        self._emulates = speed < 1 or paced is not None
        self._sums: list[dist.Work | Future[Tensor]] = []
        self._without_sums: Callable[[], AbstractContextManager[None]] = nullcontext
        uncompiled = training.method.model_copy(update={"compiled": False})
        name = f"{way} (rank {self._rank})"
        super().__init__(task, uncompiled, training.optimizer, accelerator, speed, name)

    def _held(self) -> Iterable[Tensor]:
        kept = chain.from_iterable(one.kept for one in self._averagers)
        return chain(map(_own_part, super()._held()), *kept)

    def _update(self) -> None:
        if self.memory is not None:
            # Of DDP's buckets no operator tells.
            grads = [weight.grad for weight in self._weights if weight.grad is not None]
            self.memory.hold(map(_own_part, grads))
        super()._update()

    def _prepared(self, module: nn.Module) -> nn.Module:
        if WAYS[self._way].local:
            return module
        if self._way in ("fsdp", "zero-2"):
            mesh = init_device_mesh(self.accelerator.device.type, (self._ranks,))
            for part in [*_blocks(module), module]:
                fully_shard(part, mesh=mesh, reshard_after_forward=self._way == "fsdp")
            return module
        # Running statistics are a rank's own, and a view of the bucket saves a copy.
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            # Of torch 2.13, which calls the first of these otherwise.
            parallel = DistributedDataParallel(
                module,
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
                bucket_cap_mb=_ALL_MEGABYTES if self._way == "powersgd" else None,
            )
        if self._way == "powersgd":
            # What is left to send is little; matrices of one shape are compressed together.
            self._power_sgd = PowerSGDState(
                None, _RANK, _WHOLE_AT_FIRST, batch_tensors_with_same_shape=True
            )
            parallel.register_comm_hook(self._power_sgd, powerSGD_hook)
        elif self._emulates or self._way == "ddp-bf16":
            # DDP would refuse annotations that are not evaluated, and bfloat16 on processors.
            parallel.register_comm_hook(None, lambda _, bucket: self._start_sum(bucket))
        self._without_sums = parallel.no_sync
        return parallel

    def _start_sum(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Start to sum gradients, as DDP does by itself or in bfloat16, after a rest."""
        self._emulated.rest()
        assert dist.group.WORLD is not None
        hook = bf16_compress_hook if self._way == "ddp-bf16" else allreduce_hook
        sum_ = hook(dist.group.WORLD, bucket)
        self._sums.append(sum_)
        if self._paced is not None:
            bytes_ = round(bucket.buffer().nbytes * WAYS[self._way].compression)
            self._sums.append(self._paced(None, bytes_))
        if bucket.is_last():
            # Nothing is left to compute: DDP would wait for them now.
            for one in self._sums:
                one.wait()
            self._sums.clear()
        self._emulated.begin()
        return sum_

    def _optimizer(self, spec: OptimizerSpec, weights: Sequence[Tensor]) -> Optimizer:
        if self._way == "zero-1":
            return build_optimizer(spec, weights, shared_by=ZeroRedundancyOptimizer)
        optimizer = build_optimizer(spec, weights)
        if not WAYS[self._way].local:
            return optimizer
        kind = OuterSteps if self._way == "diloco" else Averages
        self._averagers.append(averager := kind(weights, self._every))
        return PostLocalSGDOptimizer(optimizer, averager)

    def warm_up(
        self, inputs: Batch, targets: Batch, state: Mapping[str, Any] | None = None
    ) -> None:
        """Make an update, then take over a state, or that from before.

        Behind its first minibatch DDP puts gradients into buckets in another order, and what
        PowerSGD has lost of a bucket belongs to that order.
        """
        state = state or copy.deepcopy(self.state())
        self.step(inputs, targets, last=True)
        self.load_state(state)

    def state(self) -> dict[str, Any]:
        """Return what the rank holds, to continue from."""
        return {
            "module": {name: _own_part(one) for name, one in self.module.state_dict().items()},
            "optimizers": [_saved(_inner(one)) for one in self.optimizers],
            "averages": [(one.step, one.kept) for one in self._averagers],
            "power_sgd": {name: getattr(self._power_sgd, name) for name in self._kept_of_power_sgd},
            "random": self._random.get_rng_state(),
        }

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state` returned."""
        for name, one in self.module.state_dict().items():
            _own_part(one).copy_(state["module"][name])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            _restore(_inner(optimizer), saved)
        for averager, (step, kept) in zip(self._averagers, state["averages"], strict=True):
            averager.step = step
            for copies, values in zip(averager.kept, kept, strict=True):
                torch._foreach_copy_(copies, values)
        for name in self._kept_of_power_sgd:
            setattr(self._power_sgd, name, state["power_sgd"][name])
        self._random.set_rng_state(state["random"])

    @property
    def _kept_of_power_sgd(self) -> tuple[str, ...]:
        return () if self._power_sgd is None else _POWERSGD

    @torch.no_grad()
    def whole(self) -> dict[str, Tensor]:
        """Return the module's state, to which every rank adds its part; all ranks have to ask.

        Between two averages it is the mean of theirs, which takes what an average takes.
        """
        found = {
            name: one.full_tensor() if isinstance(one, DTensor) else one
            for name, one in self.module.state_dict().items()
        }
        if any(one.step % one.period for one in self._averagers):
            kept = {name: one for name, one in found.items() if one.is_floating_point()}
            flat = torch.cat([one.flatten() for one in kept.values()]) / self._ranks
            with self._resting():
                dist.all_reduce(flat)
            parts = flat.split([one.numel() for one in kept.values()])
            found |= {n: part.view_as(kept[n]) for n, part in zip(kept, parts, strict=True)}
        return found

    def step(self, inputs: Batch, targets: Batch, *, last: bool = False) -> Tensor:
        """Train on this rank's part of a minibatch, which all ranks are given; return its loss."""
        inputs, targets = equal_part((inputs, targets), self._rank, self._ranks)
        collects = not last and self._collected + 1 < self.method.accumulate
        with self._without_sums() if collects else nullcontext(), self._resting():
            return super().step(inputs, targets, last=last)

    @contextmanager
    def _resting(self) -> Iterator[None]:
        """Have an emulated accelerator rest before it sends what it waits for."""
        with ExitStack() as restoring:
            for name, rings in _WAITED_FOR[self._way].items() if self._emulates else ():
                if (send := getattr(dist, name, None)) is not None:
                    restoring.callback(setattr, dist, name, send)
                    setattr(dist, name, partial(self._send, send, rings))
            yield

    def _send(
        self, send: Callable[..., dist.Work | None], rings: int, *given: Any, **options: Any
    ) -> dist.Work | None:
        self._emulated.rest()
        paced = None
        if self._paced is not None:
            tensors = (t for t in (*given, *options.values()) if isinstance(t, Tensor))
            paced = self._paced(None, max(tensor.nbytes for tensor in tensors), rings=rings)
        work = send(*given, **options)
        for one in (work, paced):
            if one is not None:
                one.wait()
        self._emulated.begin()
        return work


def train_parallel(
    command: TrainParallel,
    work: ParallelWork,
    member: Member,
    accelerator: Accelerator,
    speed: float,
    tell: Callable[[Working], None],
    kept_in: Path,
) -> RunResult:
    """Train as one rank; all ranks are connected first.

    The time of an entry is that of a minibatch.
    """
    training, task = command.training, work.task
    clock, paced = accelerator.new_clock(), None
    with _connected(member, command.group):
        if member.pace is not None:
            others = [worker for worker in command.group.workers if worker != member.worker]
            assert dist.group.WORLD is not None
            paced = partial(PacedSum, group=dist.group.WORLD, others=others, pace=member.pace)
        seed_generator(accelerator.device, training.seed + dist.get_rank())
        task.module.train()
        loop = ParallelLoop(training, task, accelerator, speed, paced)
        minibatches = work.minibatches
        if work.states is None:
            # The same one each time.
            minibatches = [to_device(minibatches[0], accelerator.device)] * len(minibatches)
        else:
            state = work.states[dist.get_rank()] if work.states else None
            loop.warm_up(*minibatches[0], state)
        accelerator.reset_peak_memory()
        dist.barrier()
        clock.mark()
        for left, minibatch in zip(count(1 - len(minibatches)), minibatches, strict=False):
            loop.step(*minibatch, last=work.ends and not left)
            clock.mark()
            tell(Working())
        if work.states is not None:
            state, model = loop.state(), loop.whole()
            if WAYS[training.way].local:
                clock.mark()
            write_tree(kept_in, to_device({"state": state, "model": model}, CPU))
        times = list(pairwise(clock.moments()))
    return RunResult(times, peak_memory_bytes=(loop.memory or accelerator).peak_memory_bytes())


@contextmanager
def _connected(member: Member, group: GroupSpec) -> Iterator[None]:
    """Have the workers of a group in torch's default process group."""
    if group.transport.backend == "gloo" and (name := _interface_of(member.address)):
        os.environ["GLOO_SOCKET_IFNAME"] = name
    dist.init_process_group(
        group.transport.backend,
        store=dist.PrefixStore(group.name, member.store),
        rank=group.workers.index(member.worker),
        world_size=len(group.workers),
        timeout=timedelta(seconds=member.timeout_seconds),
    )
    try:
        yield
    finally:
        # Gloo's threads give up the last sums with Python's lock. Who frees the group waits for
        # them, and has that lock: without a pause one in five trainings with DDP never ended.
        time.sleep(_PAUSE_SECONDS)
        dist.destroy_process_group()


def _interface_of(address: str) -> str | None:
    """Return the network interface of this host that has an address; None if it is not found."""
    get_address = 0x8915
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                found = fcntl.ioctl(any_socket, get_address, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return None


def _inner(optimizer: Optimizer) -> Optimizer:
    """Return what ZeRO-1 or local SGD have made an optimizer of several ranks of."""
    if isinstance(optimizer, ZeroRedundancyOptimizer | PostLocalSGDOptimizer):
        optimizer = optimizer.optim
    return optimizer


def _saved(optimizer: Optimizer) -> dict[str, Any]:
    """Return an optimizer's state, of tensors with shards what the rank has of them."""
    found = optimizer.state_dict()
    return {
        "param_groups": found["param_groups"],
        "state": {
            number: {k: _own_part(v) if isinstance(v, Tensor) else v for k, v in of_one.items()}
            for number, of_one in found["state"].items()
        },
    }


def _restore(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Take over what :func:`_saved` returned."""
    optimizer.load_state_dict(dict(saved))
    for weight, of_one in optimizer.state.items():
        if not isinstance(weight, DTensor):
            continue
        shape, stride = weight.shape, weight.stride()
        for key, value in of_one.items():
            if isinstance(value, Tensor) and value.shape == weight.to_local().shape:
                of_one[key] = DTensor.from_local(
                    value, weight.device_mesh, weight.placements, shape=shape, stride=stride
                )


def _own_part(tensor: Tensor) -> Tensor:
    """Return what a rank has of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost modules of lists and sequences that have weights, such as layers."""
    for child in module.children():
        if isinstance(child, nn.ModuleList | nn.Sequential):
            yield from (block for block in child if any(True for _ in block.parameters()))
        else:
            yield from _blocks(child)
