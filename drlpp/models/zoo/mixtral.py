"""A mixture of experts in every block of a decoder (Jiang et al. 2024, arXiv:2401.04088).

The experts of a block are branches side by side::

                  ┌─ expert 0 ─┐
    x ─ router ───┼─ expert 1 ─┼─ sum
                  └─     …    ─┘

A graph has fixed shapes, so an expert takes a fixed number of tokens, as in Switch Transformers
(Fedus et al. 2021, arXiv:2101.03961): those that want it most. What is left over passes by.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from drlpp.errors import InvalidInput
from drlpp.models.task import Task
from drlpp.models.zoo.llama import GatedFeedForward, Llama
from drlpp.models.zoo.tokens import continuation_task


class MixtureOfExperts(nn.Module):
    """Networks of which every token chooses a few, and a router that says how much of each.

    Shapes: ``(batch, length, hidden)`` to the same.

    Args:
        hidden, inner: sizes of an expert.
        experts: how many there are.
        chosen: how many a token wants.
        capacity: tokens that an expert takes, as a factor on what is its share. With
            ``experts / chosen`` or more none is ever left over.

    Raises:
        InvalidInput: if tokens are to choose more experts than there are, or these take none.
    """

    def __init__(self, hidden: int, inner: int, experts: int, chosen: int, capacity: float) -> None:
        super().__init__()
        if not 1 <= chosen <= experts:
            raise InvalidInput(f"a token cannot choose {chosen} of {experts} experts")
        if capacity <= 0:
            raise InvalidInput(f"capacity is {capacity}; an expert has to take tokens")
        self.router = nn.Linear(hidden, experts, bias=False)
        self.experts = nn.ModuleList(GatedFeedForward(hidden, inner) for _ in range(experts))
        self.chosen, self.capacity = chosen, capacity

    def forward(self, x: Tensor) -> Tensor:
        """Give for every token the weighted sum of its experts."""
        tokens = x.flatten(0, 1)
        weights, places = self.router(tokens).softmax(1).topk(self.chosen, dim=1)
        weights = weights / weights.sum(1, keepdim=True)
        gates = tokens.new_zeros(len(tokens), len(self.experts)).scatter(1, places, weights)
        share = self.capacity * self.chosen * len(tokens) / len(self.experts)
        taken = min(len(tokens), math.ceil(share))
        parts = []
        for index, expert in enumerate(self.experts):
            # Of a token that did not choose the expert the gate is 0, and so is what it adds.
            gate, who = gates[:, index].topk(taken)
            out = gate.unsqueeze(1) * expert(tokens[who])
            parts.append(torch.zeros_like(tokens).index_add(0, who, out))
        return torch.stack(parts).sum(0).unflatten(0, x.shape[:2])


def mixtral(
    batch_size: int = 1,
    sequence_length: int = 1024,
    vocabulary: int = 32_000,
    hidden: int = 4096,
    inner: int = 14_336,
    layers: int = 32,
    heads: int = 32,
    key_heads: int = 8,
    experts: int = 8,
    chosen: int = 2,
    capacity: float = 1.25,
    base: float = 1_000_000.0,
) -> Task:
    """Return Mixtral 8x7B on random text; it has 46.7 billion weights.

    Nothing is added to the loss that would spread tokens evenly over the experts. Which tokens are
    left over depends on all tokens of the minibatch, later ones included: a minibatch in parts is
    not the same as a whole one, and with less ``capacity`` than ``experts / chosen`` the model is
    no causal one.

    Args:
        batch_size: sequences in a minibatch.
        sequence_length: tokens of a sequence.
        vocabulary: number of tokens.
        hidden: units of every layer.
        inner: units inside an expert.
        layers: number of blocks.
        heads: of queries.
        key_heads: of keys and values.
        experts: of every block.
        chosen: experts that a token wants.
        capacity: tokens that an expert takes, as a factor on its share; ``experts / chosen``
            leaves none over, as in the paper, and computes as much as if all were chosen.
        base: of the rotations.

    Raises:
        InvalidInput: if heads, units or experts do not go together.
    """
    sizes = (vocabulary, hidden, layers, heads, key_heads, sequence_length, base, False)
    module = Llama(
        *sizes, feed_forward=lambda: MixtureOfExperts(hidden, inner, experts, chosen, capacity)
    )
    return continuation_task(module, batch_size, sequence_length, vocabulary)
