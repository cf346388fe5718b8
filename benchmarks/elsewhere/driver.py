"""One rank of bundles; ``ranks.py`` copies this file next to their packages and starts it.

Rank 0 reads orders, a line of JSON each, and answers when all ranks have followed them::

    ["load", NAME, SPEEDS]                  loads a bundle, with the speed of every rank
    ["weights", NAME, MINIBATCHES, FILE]    trains, and writes the weights
    ["time", NAME, MINIBATCHES]             trains, and answers with seconds per minibatch
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


class _Loaded:
    """A bundle in this rank, and the minibatches of a step."""

    def __init__(self, name: str, speeds: list[float]) -> None:
        pipelined, training = (import_module(f"{name}.{part}") for part in ("pipeline", "training"))
        self.pipeline = pipelined.Pipeline(torch.device("cpu"))
        self.minibatches: int = self.pipeline.facts.minibatches
        example = list(islice(training._example(), self.minibatches))
        self._step = training._together(example, self.pipeline.facts)
        if (speed := speeds[dist.get_rank()]) < 1:
            _emulate(self.pipeline, speed)
        # The first makes buffers, and is no part of any time.
        self._warm = False

    def weights(self, minibatches: int, file: str) -> None:
        for _ in range(minibatches // self.minibatches):
            self.pipeline.step(*self._step)
        if (state := self.pipeline.state()) is not None:
            torch.save(state, file)

    def seconds(self, minibatches: int) -> float:
        steps = max(minibatches // self.minibatches, 1)
        if not self._warm:
            self.pipeline.step(*self._step)
            self._warm = True
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            self.pipeline.step(*self._step)
        dist.barrier()
        return (time.perf_counter() - begin) / (steps * self.minibatches)


def main() -> None:
    """Follow orders until there are no more."""
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    met = f"file://{Path('met').absolute()}"
    dist.init_process_group("gloo", init_method=met, rank=rank, world_size=ranks)
    loaded: dict[str, _Loaded] = {}
    while True:
        heard: list[Any] = [None]
        if rank == 0 and (line := sys.stdin.readline()):
            heard = [json.loads(line)]
        dist.broadcast_object_list(heard)
        if heard[0] is None:
            break
        what, name, *more = heard[0]
        answer = None
        if what == "load":
            loaded[name] = _Loaded(name, *more)
        elif what == "weights":
            assert "drlpp" not in sys.modules
            loaded[name].weights(*more)
        else:
            answer = loaded[name].seconds(*more)
        dist.barrier()
        if rank == 0:
            print("answer", json.dumps(answer), flush=True)
    dist.destroy_process_group()
    sys.stdout.flush()
    # On a busy machine torch's threads sometimes abort a process that is ending anyway.
    os._exit(0)


def _emulate(pipeline: Any, speed: float) -> None:
    """Let passes and updates rest, as those of the runtime's workers do."""
    from drlpp.runtime.device.emulation import EmulatedAccelerator

    accelerator = EmulatedAccelerator(speed)

    def slowed(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def rested(*args: Any, **kwargs: Any) -> Any:
            accelerator.begin()
            result = function(*args, **kwargs)
            accelerator.rest()
            return result

        setattr(owner, name, rested)

    slowed(pipeline._scheduled, "forward_one_chunk")
    slowed(pipeline._scheduled, "backward_one_chunk")
    if pipeline.facts.asynchrony is None:
        slowed(pipeline, "_update_all")
    else:
        slowed(pipeline._weights, "update")


if __name__ == "__main__":
    main()
