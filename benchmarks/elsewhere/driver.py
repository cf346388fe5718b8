"""One rank of a bundle; ``bundles.py`` copies this file next to the package and starts it.

python driver.py weights MINIBATCHES FILE        trains, and writes the weights
python driver.py time MINIBATCHES SPEED,SPEED    trains, and prints seconds per minibatch
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist


def main(mode: str, minibatches: int, more: str) -> None:
    """Train as the arguments say."""
    # Of the bundle in this folder.
    pipelined, training = (import_module(f"pipelined.{name}") for name in ("pipeline", "training"))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    pipeline = pipelined.Pipeline(torch.device("cpu"))
    facts = pipeline.facts
    step = training._together(list(islice(training._example(), facts.minibatches)), facts)
    if mode == "weights":
        for _ in range(minibatches // facts.minibatches):
            pipeline.step(*step)
        assert "drlpp" not in sys.modules
        if (state := pipeline.state()) is not None:
            torch.save(state, more)
    else:
        speed = float(more.split(",")[dist.get_rank()])
        if speed < 1:
            _emulate(pipeline, speed)
        steps = max(minibatches // facts.minibatches, 1)
        seconds = [_timed(pipeline, step, steps) for _ in range(2)][1]
        if dist.get_rank() == 0:
            print(json.dumps(seconds / (steps * facts.minibatches)), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    # On a busy machine torch's threads sometimes abort a process that is ending anyway.
    os._exit(0)


def _timed(pipeline: Any, step: Any, steps: int) -> float:
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(steps):
        pipeline.step(*step)
    dist.barrier()
    return time.perf_counter() - begin


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
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
