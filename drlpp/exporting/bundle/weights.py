"""The weights of an asynchronous stage: which version a pass meets, and how an update is made.

A part meets W_t at its forward and W_{t+s} at its backward, s updates later. ``newest`` leaves it
at that, ``kept`` keeps the version of the forward for the backward (PipeDream), and all others move
the weights for a pass, and back (``directions.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import _unsafe_preserve_version_counter
from torch.func import functional_call
from torch.optim import Optimizer

from .directions import DIRECTIONS, Direction
from .facts import Asynchrony


class Weights(nn.Module):
    """Calls a stage with the weights that are in force, and updates them.

    Args:
        stage: called as it is.
        optimizer: of its weights; None if it has none.
        clip_norm: gradients of the stage with a larger norm are scaled down to it; 0 does not.
    """

    def __init__(self, stage: nn.Module, optimizer: Optimizer | None, clip_norm: float) -> None:
        super().__init__()
        self.stage = stage
        self.optimizer = optimizer
        self.clip_norm = clip_norm
        self.trained = {n: w for n, w in stage.named_parameters() if w.requires_grad}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the stage."""
        return self.stage(*args, **kwargs)

    def begin(self) -> None:
        """Begin a step, the pipeline empty: versions are numbered from 0."""

    @contextmanager
    def forward_of(self, part: int) -> Iterator[None]:
        """Put the weights of a part's forward in force."""
        yield

    @contextmanager
    def backward_of(self, part: int) -> Iterator[None]:
        """Put the weights of a part's backward in force."""
        yield

    def update(self, contributions: int) -> None:
        """Make the next version, from the mean of the gradients since the last."""
        if self.optimizer is None:
            return
        weights = list(self.trained.values())
        for weight in weights:
            if weight.grad is not None and contributions > 1:
                weight.grad.div_(contributions)
        if self.clip_norm:
            nn.utils.clip_grad_norm_(weights, self.clip_norm)
        # Backwards that are still to come may read the newer values: autograd is not to notice.
        with _unsafe_preserve_version_counter(tuple(weights)):
            self._step(self.optimizer)
        self.optimizer.zero_grad()

    def _step(self, optimizer: Optimizer) -> None:
        optimizer.step()


class Moved(Weights):
    """Passes run with weights some updates ahead of the newest, or behind them.

    ``leads`` and ``back_leads`` have for every part how many updates its forward and its backward
    look ahead.
    """

    def __init__(
        self,
        stage: nn.Module,
        optimizer: Optimizer | None,
        clip_norm: float,
        leads: tuple[list[int], list[int]],
        direction: Direction,
    ) -> None:
        super().__init__(stage, optimizer, clip_norm)
        self.leads, self.back_leads = leads
        self.direction = direction

    @contextmanager
    def forward_of(self, part: int) -> Iterator[None]:
        """Move the weights, and back."""
        with self._moved(self.leads[part]):
            yield

    @contextmanager
    def backward_of(self, part: int) -> Iterator[None]:
        """Move the weights, and back."""
        with self._moved(self.back_leads[part]):
            yield

    @contextmanager
    def _moved(self, lead: int) -> Iterator[None]:
        shifts = self.direction.shifts(lead) if lead else {}
        kept = {name: self.trained[name].detach().clone() for name in shifts}
        self._write({name: kept[name] + shift for name, shift in shifts.items()})
        try:
            yield
        finally:
            self._write(kept)

    def _step(self, optimizer: Optimizer) -> None:
        with torch.no_grad():
            self.direction.before_step()
            super()._step(optimizer)
            self.direction.after_step()

    def _write(self, values: dict[str, Tensor]) -> None:
        weights = tuple(self.trained[name] for name in values)
        with torch.no_grad(), _unsafe_preserve_version_counter(weights):
            for weight, value in zip(weights, values.values(), strict=True):
                weight.copy_(value)


class Kept(Weights):
    """Both passes of a part use the same version; ``versions`` has its number for every part.

    A version is a copy that is kept until the last part that uses it has made its backward.
    """

    def __init__(
        self, stage: nn.Module, optimizer: Optimizer | None, clip_norm: float, versions: list[int]
    ) -> None:
        super().__init__(stage, optimizer, clip_norm)
        self.versions = versions
        self._last_part = {version: part for part, version in enumerate(versions)}
        self._copies: dict[int, dict[str, Tensor]] = {}
        self._in_force: dict[str, Tensor] = {}
        self._newest = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the stage with the version in force."""
        return functional_call(self.stage, self._in_force, args, kwargs)

    def begin(self) -> None:
        """Begin with the newest version as number 0."""
        self._newest, self._copies = 0, {}
        self._keep()

    @contextmanager
    def forward_of(self, part: int) -> Iterator[None]:
        """Put the version of the part in force."""
        self._in_force = self._copies[self.versions[part]]
        yield

    @contextmanager
    def backward_of(self, part: int) -> Iterator[None]:
        """Move the gradients from the version of the part to the weights."""
        yield
        version = self.versions[part]
        for name, copy in self._copies[version].items():
            weight, gradient = self.trained[name], copy.grad
            copy.grad = None
            if gradient is not None:
                weight.grad = gradient if weight.grad is None else weight.grad + gradient
        if self._last_part[version] == part:
            del self._copies[version]

    def update(self, contributions: int) -> None:
        """Make the next version, and a copy of it if a part will use it."""
        super().update(contributions)
        self._newest += 1
        self._keep()

    def _keep(self) -> None:
        if self._newest in self._last_part:
            self._copies[self._newest] = {
                name: weight.detach().clone().requires_grad_()
                for name, weight in self.trained.items()
            }


def weights_of(
    stage: nn.Module,
    optimizer: Optimizer | None,
    clip_norm: float,
    asynchrony: Asynchrony | None,
    rank: int,
) -> Weights:
    """Return the weights of stage ``rank``."""
    if asynchrony is None or asynchrony.policy == "newest":
        return Weights(stage, optimizer, clip_norm)
    if asynchrony.policy == "kept":
        return Kept(stage, optimizer, clip_norm, asynchrony.versions[rank])
    if optimizer is None:
        return Weights(stage, optimizer, clip_norm)
    trained = {n: w for n, w in stage.named_parameters() if w.requires_grad}
    direction = DIRECTIONS[asynchrony.policy](trained, optimizer, asynchrony.decays[rank])
    leads = asynchrony.leads[rank], asynchrony.back_leads[rank]
    return Moved(stage, optimizer, clip_norm, leads, direction)
