"""Taking up an agent that a run has saved, without running code that its file may hold.

Stable-baselines3 keeps what is no JSON as pickles, and a pickle may name any function to call. Of
those in a run's ``agent.zip`` only the classes are loaded that an agent of ours is made of. (Its
``load`` itself, as in ``DRLPP.load(path)``, takes any pickle, as its users know.)
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from drlpp.agents.paper.algorithm import DRLPP
from drlpp.envs import PlacementEnv
from drlpp.errors import InvalidFile

_SERIALIZED = ":serialized:"

_PARTS = {
    "collections": {"OrderedDict", "deque"},
    "drlpp.agents.paper.advantages": {"StageBaselines"},
    "drlpp.agents.transfer.context": {"PlacementContext"},
    "drlpp.agents.paper.policy": {"PlacementPolicy"},
    "drlpp.agents.transfer.relative_costs": {"RelativeCosts", "RelativeTensor"},
    "drlpp.agents.paper.trajectory": {"MethodTrajectory", "Rewarded", "Trajectory"},
    "drlpp.agents.transfer.transfer_policy": {"TransferPolicy"},
    "drlpp.agents.paper.walk": {"Decision", "PartitionWalk"},
    "drlpp.agents.transfer.walk_record": {"RecordedWalk", "WalkRecord"},
    "drlpp.capturing.graph": {"Edge", "OpGraph", "Operator", "TensorSpec"},
    "drlpp.planners.calibration.recalibration": {"Options"},
    "gymnasium.spaces.box": {"Box"},
    "gymnasium.spaces.multi_discrete": {"MultiDiscrete"},
    "numpy": {"dtype", "ndarray"},
    "numpy.core.multiarray": {"_reconstruct", "scalar"},
    "numpy.core.numeric": {"_frombuffer"},
    "numpy.random._pcg64": {"PCG64"},
    "numpy.random._pickle": {"__bit_generator_ctor", "__generator_ctor"},
    "numpy.random.bit_generator": {"SeedSequence", "__pyx_unpickle_SeedSequence"},
    "stable_baselines3.common.utils": {"ConstantSchedule", "FloatSchedule"},
    "torch._utils": {"_rebuild_tensor_v2"},
}
"""What an agent's pickles consist of, by module; since numpy 2 its core has another name."""

_HOMES = {
    module.replace(room, ""): module
    for module in _PARTS
    for room in ("paper.", "transfer.", "capturing.")
    if room in module
} | dict.fromkeys(
    (
        "drlpp.planners.recalibration",
        "drlpp.planners.model_based.recalibration",
        "drlpp.planners.model_based.options",
    ),
    "drlpp.planners.calibration.recalibration",
)
"""The modules that agents saved by version 0.1, and since, name by their old place."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return one of the parts, by exactly its name."""
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return _read_tensors
        module = _HOMES.get(module, module)
        if name not in _PARTS.get(module.replace("numpy._core", "numpy.core"), ()):
            raise pickle.UnpicklingError(f"{module}.{name} is no part of an agent")
        return super().find_class(module, name)


def _read_tensors(data: bytes) -> Any:
    """Read tensors only: what torch itself does here would load any pickle."""
    return torch.load(io.BytesIO(data), weights_only=True)


def load_agent(algorithm: type[DRLPP], path: Path, env: PlacementEnv, **changes: Any) -> DRLPP:
    """Load an agent as it was saved.

    Args:
        algorithm: of the agent.
        path: of its file.
        env: in which it continues.
        changes: attributes that are to be other than they were.

    Raises:
        InvalidFile: it is not an agent for this model, or holds what none does.
    """
    try:
        content = path.read_bytes()
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            described = json.loads(archive.read("data"))
        parts = {
            key: _Unpickler(io.BytesIO(base64.b64decode(value[_SERIALIZED]))).load()
            for key, value in described.items()
            if isinstance(value, dict) and _SERIALIZED in value
        }
        return algorithm.load(io.BytesIO(content), env=env, custom_objects=parts, **changes)
    # Whatever a damaged or hostile file makes the libraries say.
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise InvalidFile(
            f"{path}: not a saved agent for this model ({reason}); delete it to let a new agent "
            "begin with what has been measured"
        ) from None
