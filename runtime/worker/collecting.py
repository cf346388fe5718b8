"""What a worker holds, written where the controller or a later training reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from torch import Tensor

from drlpp.runtime.device.devices import CPU, to_device
from drlpp.runtime.ipc.protocol import Collect
from drlpp.runtime.ipc.tensor_file import write_tree
from drlpp.runtime.stage.finite_weights import check_finite
from drlpp.runtime.stage.stage_runner import StageRunner
from drlpp.schedule.actions import Message


def collect(
    command: Collect,
    runners: Mapping[str, StageRunner],
    inbox: Mapping[Message, Sequence[Tensor]],
    folder: Path,
    state: Mapping[str, Tensor],
) -> None:
    """Write weights, the optimizer's state and what is in flight into a file or a storage.

    Args:
        command: says which of these, and where to.
        runners: of the worker's stages, by their names in checkpoints.
        inbox: what was received for parts in flight.
        folder: of the session.
        state: the weights that the model began with; what a storage gets has to be as finite.

    Raises:
        NotFinite: weights are not finite.
        StorageFailure: there is no room for it.
    """
    held: dict[str, Any] = {"model": {}, "optimizer": {}}
    buffers: dict[str, Tensor] = {}
    for runner in runners.values():
        if command.weights:
            model, optimizer = runner.saved()
            held["model"] |= model
            held["optimizer"] |= optimizer
        buffers |= runner.buffers
    if command.in_flight:
        held["in_flight"] = {
            "inbox": [(astuple(message), tensors) for message, tensors in inbox.items()],
            "buffers": buffers,
        }
        for name, runner in runners.items():
            held["in_flight"][name] = runner.in_flight_state()
    path, held = folder / command.file, to_device(held, CPU)
    if not command.storage:
        write_tree(path, held)
        return
    # Most trainings keep their checkpoints in files, and begin sooner without it.
    from drlpp.runtime.ipc.shared_storage import storage_at

    check_finite(held["model"], state)
    try:
        write_tree(path, held)
        storage_at(command.storage).put(path, command.name)
    finally:
        path.unlink(missing_ok=True)
