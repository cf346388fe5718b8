"""Residual LSTM (Kim et al. 2017, arXiv:1701.03360), classifying reviews as in pipeoptim §V.

The shortcut from layer to layer ends before the output gate, so that it is not a sum around an
ordinary LSTM. Layer l computes from x_t, the output of the layer below (⊙ is elementwise)::

    i_t = σ(W_xi x_t + W_hi h_{t−1} + w_ci ⊙ c_{t−1} + b_i)
    f_t = σ(W_xf x_t + W_hf h_{t−1} + w_cf ⊙ c_{t−1} + b_f)
    c_t = f_t ⊙ c_{t−1} + i_t ⊙ tanh(W_xc x_t + W_hc h_{t−1} + b_c)
    o_t = σ(W_xo x_t + W_ho h_{t−1} + W_co c_t + b_o)
    h_t = o_t ⊙ (W_p tanh(c_t) + x_t)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.models.task import Task
from drlpp.models.zoo.images import is_correct


class ResidualLSTMLayer(nn.Module):
    """One layer, unrolled over the tokens.

    From the first to the last use of the recurrent weights it is one operator. What it reads from
    the layer below arrives as one tensor.

    Shapes: ``(batch, length, hidden)`` to the same.
    """

    def __init__(self, hidden: int, cells: int) -> None:
        super().__init__()
        self.sizes = [cells, cells, cells, hidden]  # of the gates i, f, the candidate, o
        self.input = nn.Linear(hidden, sum(self.sizes))
        self.recurrent = nn.Linear(hidden, sum(self.sizes), bias=False)
        self.input_peephole = nn.Parameter(torch.zeros(cells))
        self.forget_peephole = nn.Parameter(torch.zeros(cells))
        self.output_peephole = nn.Linear(cells, hidden, bias=False)
        self.projection = nn.Linear(cells, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Give the layer's output for every token."""
        inputs, hidden = self.input.out_features, self.recurrent.in_features
        h = torch.zeros(x.shape[0], hidden, dtype=x.dtype, device=x.device)
        c = torch.zeros(x.shape[0], len(self.input_peephole), dtype=x.dtype, device=x.device)
        outputs = []
        for step in torch.cat([self.input(x), x], dim=2).unbind(1):
            from_input, shortcut = step.split([inputs, hidden], dim=1)
            gates = from_input + self.recurrent(h)
            into, forget, candidate, out = gates.split(self.sizes, dim=1)
            into = torch.sigmoid(into + self.input_peephole * c)
            forget = torch.sigmoid(forget + self.forget_peephole * c)
            c = forget * c + into * torch.tanh(candidate)
            out = torch.sigmoid(out + self.output_peephole(c))
            h = out * (self.projection(torch.tanh(c)) + shortcut)
            outputs.append(h)
        return torch.stack(outputs, dim=1)


class ResidualLSTM(nn.Module):
    """An embedding, residual LSTM layers, and a linear layer on the last token's output.

    Shapes: tokens ``(batch, length)`` to ``(batch, classes)``.
    """

    def __init__(
        self,
        vocabulary: int = 25_000,
        hidden: int = 512,
        cells: int = 1024,
        layers: int = 3,
        classes: int = 2,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(ResidualLSTMLayer(hidden, cells) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Give the logits of the classes."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.fc(self.dropout(x[:, -1]))


def residual_lstm(
    batch_size: int = 256,
    sequence_length: int = 100,
    vocabulary: int = 25_000,
    hidden: int = 512,
    cells: int = 1024,
    layers: int = 3,
    classes: int = 2,
    dropout: float = 0.5,
) -> Task:
    """Return Residual LSTM on random reviews, which it calls positive or negative.

    pipeoptim says no more than the name, IMDb and a minibatch of 256; cells, units and layers are
    those of the smallest model of Kim et al.

    Args:
        batch_size: reviews in a minibatch.
        sequence_length: tokens of a review.
        vocabulary: number of tokens.
        hidden: outputs of every layer, and size of the embedding.
        cells: memory cells of every layer.
        layers: number of residual LSTM layers.
        classes: number of classes.
        dropout: probability, before the linear layer.
    """
    module = ResidualLSTM(vocabulary, hidden, cells, layers, classes, dropout)
    tokens = torch.randint(vocabulary, (batch_size, sequence_length))
    labels = torch.randint(classes, (batch_size,))
    return Task(module, (tokens,), labels, F.cross_entropy, is_correct)
