"""What the agents are built with: one YAML file for each, shipped with the package.

``agents/hyperparameters/*.yaml`` are what ``train_agent.py --agent NAME`` takes; a copy of one of
them, changed, is what ``--agent my.yaml`` takes, and ``--agent mymodule:MyAgent`` an agent of one's
own.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from drlpp.agents.guided import GuidedSearch, Searcher
from drlpp.envs import PlacementEnv
from drlpp.errors import DRLPPError, InvalidInput
from drlpp.io.documents import Document, read_document, read_mapping
from drlpp.io.importing import ImportedByName
from drlpp.planners.calibration.recalibration import Options

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.type_aliases import GymEnv

    from drlpp.agents.paper.algorithm import DRLPP


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
        # It takes seconds to import, which other agents need not wait for.
        from drlpp.agents.paper.algorithm import DRLPP

        arguments = self.model_dump(exclude={"temperature", "feasible"})
        policy_kwargs = {"temperature": self.temperature, "feasible": self.feasible}
        return DRLPP("PlacementPolicy", env, **arguments, policy_kwargs=policy_kwargs, **options)


class GuidedHyperparameters(Document):
    """What a guided agent is built with; :class:`GuidedSearch` explains every field.

    Those of the search are :class:`~drlpp.planners.calibration.recalibration.Options`.
    """

    kind: ClassVar[str] = "guided-hyperparameters"

    proposals: int = Field(default=4, ge=1, le=1000)
    give_up: float = Field(default=1.5, ge=0, le=1e6)
    evaluations: int = Field(default=600, ge=1, le=1_000_000)
    draws: int = Field(default=16, ge=1, le=10_000)
    gain: float = Field(default=0.005, ge=0, lt=1)
    confirmations: int = Field(default=2, ge=1, le=1000)
    patience: int = Field(default=12, ge=0, le=1_000_000)
    policy_rollouts: int = Field(default=2, ge=0, le=1000)

    def build(self, env: PlacementEnv) -> GuidedSearch:
        """Build a searcher for ``env``."""
        search = Options(**self.model_dump(include={field.name for field in fields(Options)}))
        return GuidedSearch(env, self.proposals, self.give_up, search, self.policy_rollouts)


class OwnAgent(ImportedByName):
    """An agent of the user's, ``package.module:name``: a class or a function.

    It is called with the environment, and what it returns is a :class:`Searcher` or an algorithm of
    stable-baselines3.
    """

    what: ClassVar[str] = "agent"
    _option: ClassVar[str] = "--agent"
    _in_python: ClassVar[str] = "agent={0!r}"

    def build(self, env: PlacementEnv) -> Searcher | BaseAlgorithm:
        """Call it with ``env``.

        Raises:
            InvalidInput: it cannot be imported, raises an error, or returns something else.
        """
        make = self.imported(InvalidInput)
        try:
            agent = make(env)
        except DRLPPError:
            raise
        except Exception as error:
            raise InvalidInput(
                f"agent {self.name!r}: called with the environment it raised "
                f"{type(error).__name__}: {error}"
            ) from error
        if isinstance(agent, Searcher) or callable(getattr(agent, "learn", None)):
            return agent
        raise InvalidInput(
            f"agent {self.name!r} gave {agent!r:.80}; expected an object with propose() and "
            "tell(candidate, outcome), or an algorithm of stable-baselines3"
        )


AgentHyperparameters = Hyperparameters | GuidedHyperparameters | OwnAgent


def _shipped() -> dict[str, Hyperparameters | GuidedHyperparameters]:
    """Return the files of this package, by name."""
    files = (Path(__file__).parent / "hyperparameters").glob("*.yaml")
    return {path.stem: _read(path) for path in sorted(files, key=lambda path: path.stem)}


def _read(path: Path) -> Hyperparameters | GuidedHyperparameters:
    if read_mapping(path).get("kind") == GuidedHyperparameters.kind:
        return read_document(path, GuidedHyperparameters)
    return read_document(path, Hyperparameters)


AGENTS: dict[str, Hyperparameters | GuidedHyperparameters] = _shipped()
"""Agents by name: the default, and the paper's. Their files say what each is for."""


def hyperparameters_of(agent: str) -> AgentHyperparameters:
    """Return what an agent is built with.

    Args:
        agent: its name, the path of a YAML file, or ``package.module:name`` of one's own.

    Raises:
        InvalidInput: there is neither an agent of this name nor such a file.
        InvalidFile: the file is not one of hyperparameters, naming the field that is wrong.
    """
    if agent in AGENTS:
        return AGENTS[agent]
    path = Path(agent)
    if path.suffix in {".yaml", ".yml"}:
        return _read(path)
    if ":" in agent:
        own = OwnAgent(name=agent).as_named_by_user()
        own.imported(InvalidInput)
        return own
    raise InvalidInput(
        f"agent {agent!r} is unknown; there are {', '.join(AGENTS)}, or give the path of a YAML "
        "file with hyperparameters, or package.module:name of an agent of your own"
    )
