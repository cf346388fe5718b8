"""An LSTM whose inputs are projected once, and whose state is carried along as one tensor."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Recurrence(nn.Module):
    """One LSTM layer, stepped by hand.

    The partitioner needs the state after every operator, and from each of those states one step
    for every candidate, so it projects all operators once and shares the projection and the
    states. The arithmetic and the initial weights are those of ``torch.nn.LSTMCell``.

    Args:
        in_features: F_in.
        units: width of the hidden and of the cell state.
    """

    def __init__(self, in_features: int, units: int) -> None:
        super().__init__()
        self.units = units
        self.input = nn.Linear(in_features, 4 * units)
        self.recurrent = nn.Linear(units, 4 * units, bias=False)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(units**-0.5), units**-0.5)

    def initial(self, batch: int) -> Tensor:
        """Return the state H̃ of an empty partition (Algorithm 1, line 1).

        It is zeros, ``(batch, 2·units)``.
        """
        return self.recurrent.weight.new_zeros(batch, 2 * self.units)

    def from_states(self, states: Tensor) -> Tensor:
        """Return what ``states`` add to the gates of the next step, ``(batch, 4·units)``."""
        return self.recurrent(states[..., : self.units])

    def step(self, gates: Tensor, states: Tensor) -> Tensor:
        """Take one step.

        Args:
            gates: ``input(x) + from_states(states)``, ``(batch, 4·units)``.
            states: hidden and cell state, ``(batch, 2·units)``.
        """
        return torch.cat(self.advance(gates, self.cell(states)), dim=-1)

    def advance(self, gates: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
        """Take one step from cell states alone; return hidden and cell states apart."""
        enter, forget, update, leave = gates.chunk(4, dim=-1)
        cell = forget.sigmoid() * cells + enter.sigmoid() * update.tanh()
        return leave.sigmoid() * cell.tanh(), cell

    def forward(self, inputs: Tensor, states: Tensor) -> Tensor:
        """Take one step from unprojected inputs, ``(batch, F_in)``."""
        return self.step(self.input(inputs) + self.from_states(states), states)

    def hidden(self, states: Tensor) -> Tensor:
        """Return the hidden half of ``states``."""
        return states[..., : self.units]

    def cell(self, states: Tensor) -> Tensor:
        """Return the cell half of ``states``."""
        return states[..., self.units :]
