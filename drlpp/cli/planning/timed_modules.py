"""A profile of a model from what its modules took elsewhere."""

from __future__ import annotations

from pathlib import Path

from drlpp.capturing.capture import capture
from drlpp.costs.files.kineto_trace import read_trace
from drlpp.costs.files.module_times import profile_of_modules, read_module_times
from drlpp.costs.profile import Profile
from drlpp.models.model_reference import ModelReference


def timed_profile(reference: ModelReference, path: Path) -> Profile:
    """Return the profile of a model from a trace, or from a table (``.csv``) of its modules.

    Raises:
        InvalidFile: what is missing in the file, or which row is of no module.
    """
    captured = capture(reference)
    module = captured.task.module
    if path.suffix == ".csv":
        times = read_module_times(path, (name for name, _ in module.named_modules()))
    else:
        times = read_trace(path, module)
    return profile_of_modules(times, captured.graph, captured.task.batch_size)
