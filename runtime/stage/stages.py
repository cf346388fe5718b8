"""A stage: a pure function of weights, buffers and tensors.

A stage has no weights of its own, and a weight policy decides with which version it is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import fx

from drlpp.capturing.graph import TensorSpec


@dataclass(frozen=True)
class ModelInput:
    """Argument or result: input ``index`` of the model."""

    index: int


@dataclass(frozen=True)
class Weight:
    """Argument: the parameter ``name``, which is trained."""

    name: str


@dataclass(frozen=True)
class Buffer:
    """Argument: the buffer, constant or frozen parameter ``name``; whether a pass changes it."""

    name: str
    changes: bool = False


@dataclass(frozen=True)
class StageOutput:
    """Argument or result: output ``index`` of stage ``stage``."""

    stage: int
    index: int


Argument = ModelInput | Weight | Buffer | StageOutput


@dataclass(frozen=True)
class StageProgram:
    """One stage as a pure function.

    Attributes:
        stage: its index.
        function: called with the arguments in order; returns a tensor or a tuple of tensors.
        arguments: what each positional argument is.
        sends: for every later stage that reads from this one, the outputs (indices) that it
            needs with their shapes, in the order in which they travel.
        receives: for every earlier stage, its outputs that this stage needs, in the same form.
        results: for the last stage, what the model returns, flat; empty for the others.
        inputs: the shapes of those inputs of the model that this stage reads or returns.
        targets: for the last stage, the shapes of what the loss compares with.
        ties: the weights of this stage that others hold copies of, with their shapes, by tie.
        loss: for the last stage, of what the model returns, and the targets.
        score: for the last stage in evaluation, of the same.
    """

    stage: int
    function: fx.GraphModule
    arguments: tuple[Argument, ...]
    sends: Mapping[int, tuple[tuple[int, TensorSpec], ...]]
    receives: Mapping[int, tuple[tuple[int, TensorSpec], ...]]
    results: tuple[Argument, ...]
    inputs: Mapping[int, TensorSpec]
    targets: tuple[TensorSpec, ...]
    ties: Mapping[int, Mapping[str, TensorSpec]] = field(default_factory=dict)
    loss: fx.GraphModule | None = None
    score: fx.GraphModule | None = None

    @property
    def weight_names(self) -> tuple[str, ...]:
        """Names of the parameters of this stage, each once, in the order of the arguments."""
        return tuple(dict.fromkeys(arg.name for arg in self.arguments if isinstance(arg, Weight)))

    @property
    def buffer_names(self) -> tuple[str, ...]:
        """Names of the buffers of this stage."""
        return tuple(dict.fromkeys(arg.name for arg in self.arguments if isinstance(arg, Buffer)))

    @property
    def sent(self) -> tuple[int, ...]:
        """The outputs that other stages read, in order."""
        return tuple(sorted({index for specs in self.sends.values() for index, _ in specs}))

    @property
    def reads_data(self) -> bool:
        """Whether this stage needs inputs of the model or targets."""
        return bool(self.inputs) or self.loss is not None

    @property
    def graphs(self) -> tuple[fx.GraphModule | None, ...]:
        """Everything that computes."""
        return self.function, self.loss, self.score
