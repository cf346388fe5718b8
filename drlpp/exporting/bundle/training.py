"""The training that ``run.py`` performs, on every rank."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .pipeline import Pipeline
from .support import FOLDER, read_facts, version_note

Minibatch = tuple[tuple[Tensor, ...], Tensor]

_DEVICES = "cpu", "cuda", "xpu"
"""Types of devices whose tensors torch's process groups send."""


def main() -> None:
    """Train as the command line says."""
    facts = read_facts()
    options = _parser(facts).parse_args()
    if options.minibatches % facts.minibatches or options.minibatches < 1:
        sys.exit(
            f"--minibatches is {options.minibatches}; a step takes {facts.minibatches}, so give a "
            "multiple of it"
        )
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    if rank == 0 and (note := version_note(facts)):
        print(f"note: {note}", file=sys.stderr)
    device = torch.device("cpu")
    if options.device != "cpu":
        device = torch.device(options.device, local)
        torch.get_device_module(device).set_device(device)
    dist.init_process_group(dist.get_default_backend_for_device(device))
    try:
        _train(Pipeline(device), options)
        # Nobody leaves while another rank still hears from it.
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _train(pipeline: Pipeline, options: argparse.Namespace) -> None:
    facts = pipeline.facts
    minibatches = iter(_data(options.data))
    for done in range(0, options.minibatches, facts.minibatches):
        inputs, targets = _together(list(islice(minibatches, facts.minibatches)), facts)
        losses = pipeline.step(inputs, targets)
        if losses:
            mean = sum(losses) / len(losses)
            print(f"minibatch {done + facts.minibatches}: loss {mean:.6g}", flush=True)
    if options.save is not None:
        state = pipeline.state()
        if state is not None:
            torch.save(state, options.save)


def _parser(facts: Any) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=f"Train {facts.model} in {len(facts.arrives)} stages with torch {facts.torch}."
    )
    parser.add_argument(
        "--minibatches", type=int, default=10 * facts.minibatches, help="to train on"
    )
    parser.add_argument(
        "--data",
        default=None,
        help="package.module:function, which gives minibatches (inputs, targets), the inputs a "
        "tuple; else one example again and again",
    )
    parser.add_argument("--save", type=Path, help="file for the weights, by the model's names")
    found = torch.accelerator.current_accelerator()
    there = torch.accelerator.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    default = found.type if found and there and found.type in _DEVICES else "cpu"
    parser.add_argument("--device", choices=_DEVICES, default=default)
    return parser


def _data(named: str | None) -> Iterable[Minibatch]:
    if named is not None:
        sys.path.insert(0, os.getcwd())
        module, _, function = named.partition(":")
        found: Iterable[Minibatch] = getattr(import_module(module), function)()
        return found
    return _example()


def _example() -> Iterator[Minibatch]:
    example = torch.load(FOLDER / "example.pt", weights_only=True)
    while True:
        yield tuple(example["inputs"]), example["targets"]


def _together(minibatches: list[Minibatch], facts: Any) -> Minibatch:
    """Return the minibatches of a step as one, samples first."""
    if len(minibatches) < facts.minibatches:
        sys.exit(f"the data ended: a step takes {facts.minibatches} minibatches")
    for _, targets in minibatches:
        if len(targets) != facts.batch_size:
            sys.exit(
                f"a minibatch has {len(targets)} samples; the stages are for {facts.batch_size}"
            )
    inputs = tuple(
        torch.cat(values) for values in zip(*(given for given, _ in minibatches), strict=True)
    )
    return inputs, torch.cat([targets for _, targets in minibatches])
