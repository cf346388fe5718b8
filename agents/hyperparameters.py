"""Hyperparameters of the agents: one YAML file for each, shipped with the package.

``agents/hyperparameters/*.yaml`` are what ``train_agent.py --agent NAME`` takes; a copy of one of
them, changed, is what ``--agent my.yaml`` takes.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from stable_baselines3.common.type_aliases import GymEnv

from drlpp.agents.guided.guided import GuidedDRLPP
from drlpp.agents.paper.algorithm import DRLPP
from drlpp.agents.transfer.weights import PRETRAINED
from drlpp.errors import InvalidInput
from drlpp.io.documents import Document, read_document, read_mapping
from drlpp.planners.calibration.recalibration import Options


class Hyperparameters(Document):
    """What an agent is built with; :class:`DRLPP` explains every field.

    The defaults are the agent of the paper, with its numbers where it gives any (drl-pp §4.2), so
    a file names only what differs from it.
    """

    kind: ClassVar[str] = "hyperparameters"

    learning_rate: float = Field(default=1e-3, gt=0, le=1e6)
    partitions_per_rollout: int = Field(default=8, ge=1, le=1000)
    placements_per_partition: int = Field(default=4, ge=1, le=1000)
    redraws: int = Field(default=16, ge=0, le=1000)
    n_epochs: int = Field(default=4, ge=1, le=1000)
    clip_range: float = Field(default=0.2, gt=0, le=1e6)
    ent_coef: float = Field(default=0.01, ge=0, le=1e6)
    scheduler_ent_coef: float = Field(default=0.01, ge=0, le=1e6)
    advantage_clip: float = Field(default=3.0, gt=0, le=1e6)
    baseline_decay: float = Field(default=0.5, ge=0, lt=1)
    max_grad_norm: float = Field(default=0.5, gt=0, le=1e6)
    temperature: Annotated[float, Field(gt=0, le=1e6)] | Literal["auto"] = "auto"
    feasible: bool = False

    def build(self, env: GymEnv, **options: Any) -> DRLPP:
        """Build an agent for ``env``; ``options`` are further arguments of :class:`DRLPP`."""
        arguments = self.model_dump(exclude={"temperature", "feasible"})
        policy_kwargs = {"temperature": self.temperature, "feasible": self.feasible}
        return DRLPP("PlacementPolicy", env, **arguments, policy_kwargs=policy_kwargs, **options)


class GuidedHyperparameters(Document):
    """What a guided agent is built with; :class:`GuidedDRLPP` explains every field.

    Those of the search are :class:`~drlpp.planners.calibration.recalibration.Options`.
    """

    kind: ClassVar[str] = "guided-hyperparameters"

    proposals: int = Field(default=4, ge=1, le=1000)
    give_up: float = Field(default=1.5, ge=0, le=1e6)
    partitions_per_rollout: int = Field(default=8, ge=1, le=1000)
    placements_per_partition: int = Field(default=2, ge=1, le=1000)
    learning_rate: float = Field(default=3e-4, gt=0, le=1e6)
    n_epochs: int = Field(default=2, ge=1, le=1000)
    clip_range: float = Field(default=0.2, gt=0, le=1e6)
    ent_coef: float = Field(default=0.01, ge=0, le=1e6)
    scheduler_ent_coef: float = Field(default=0.01, ge=0, le=1e6)
    max_grad_norm: float = Field(default=0.5, gt=0, le=1e6)
    imitation_coef: float = Field(default=0.5, ge=0, le=1e6)
    elites: int = Field(default=4, ge=1, le=1000)
    practice: bool = False
    pretrained: bool = True
    evaluations: int = Field(default=600, ge=1, le=1_000_000)
    draws: int = Field(default=16, ge=1, le=10_000)
    gain: float = Field(default=0.005, ge=0, lt=1)
    confirmations: int = Field(default=2, ge=1, le=1000)
    patience: int = Field(default=12, ge=0, le=1_000_000)

    def build(self, env: GymEnv, **options: Any) -> GuidedDRLPP:
        """Build an agent for ``env``; ``options`` are further arguments of :class:`GuidedDRLPP`."""
        switches = {field.name for field in fields(Options)}
        arguments = self.model_dump(exclude={"pretrained", *switches})
        search = Options(**self.model_dump(include=switches))
        policy_kwargs = {"pretrained": PRETRAINED if self.pretrained else None}
        return GuidedDRLPP(
            "TransferPolicy",
            env,
            search=search,
            policy_kwargs=policy_kwargs,
            **arguments,
            **options,
        )


AgentHyperparameters = Hyperparameters | GuidedHyperparameters


def _shipped() -> dict[str, AgentHyperparameters]:
    """Return the files of this package, by name."""
    files = (Path(__file__).parent / "hyperparameters").glob("*.yaml")
    return {path.stem: _read(path) for path in sorted(files, key=lambda path: path.stem)}


def _read(path: Path) -> AgentHyperparameters:
    if read_mapping(path).get("kind") == GuidedHyperparameters.kind:
        return read_document(path, GuidedHyperparameters)
    return read_document(path, Hyperparameters)


AGENTS: dict[str, AgentHyperparameters] = _shipped()
"""Agents by name: the paper's, and those that go beyond it. Their files say what each is for."""


def hyperparameters_of(agent: str) -> AgentHyperparameters:
    """Return the hyperparameters of an agent, by its name or by the path of a YAML file.

    Raises:
        InvalidInput: there is neither an agent of this name nor such a file.
        InvalidFile: the file is not one of hyperparameters, naming the field that is wrong.
    """
    if agent in AGENTS:
        return AGENTS[agent]
    path = Path(agent)
    if path.suffix in {".yaml", ".yml"}:
        return _read(path)
    raise InvalidInput(
        f"agent {agent!r} is unknown; there are {', '.join(AGENTS)}, or give the path of a YAML "
        "file with hyperparameters"
    )
