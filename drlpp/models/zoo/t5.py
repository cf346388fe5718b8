"""T5, an encoder and a decoder of text (Raffel et al. 2020, arXiv:1910.10683).

Attention knows positions by their distance alone: a number for each range of distances and head is
added to its scores, the same numbers in all layers of a side.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.models.task import Task
from drlpp.models.zoo.tokens import translation_task

_EPSILON = 1e-6
_RANGES = 32
_FARTHEST = 128


class RelativePositions(nn.Module):
    """What attention adds to its scores, by head and by how far a key is from a query.

    Near distances have a number each, farther ones share one by the logarithm; a decoder, which
    sees nothing that comes later, has twice as many for what came before.

    Shapes: lengths of queries and keys, to ``(1, heads, length, length)``; with ``causal`` −∞ where
    a key is later.
    """

    def __init__(self, heads: int, causal: bool) -> None:
        super().__init__()
        self.numbers = nn.Embedding(_RANGES, heads)
        self.causal = causal

    def forward(self, length: int, like: Tensor) -> Tensor:
        """Look up the numbers, on the device of ``like``."""
        places = torch.arange(length, device=like.device)
        distance = places - places.unsqueeze(1)
        added = self.numbers(self._ranges(distance)).permute(2, 0, 1).unsqueeze(0)
        return added.masked_fill(distance > 0, -math.inf) if self.causal else added

    def _ranges(self, distance: Tensor) -> Tensor:
        """Return the range of every distance from query to key, ``(length, length)``."""
        first = torch.zeros_like(distance)
        if self.causal:
            ranges, far = _RANGES, (-distance).clamp(min=0)
        else:
            ranges, far = _RANGES // 2, distance.abs()
            first = ranges * (distance > 0).long()
        near = ranges // 2
        share = torch.log(far.clamp(min=1).float() / near) / math.log(_FARTHEST / near)
        farther = (near + (share * (ranges - near)).long()).clamp(max=ranges - 1)
        return first + torch.where(far < near, far, farther)


class T5Attention(nn.Module):
    """softmax(Q Kᵀ + positions) V for every head, between linear layers without biases.

    Shapes: queries ``(batch, length, hidden)`` and states ``(batch, read length, hidden)`` to
    ``(batch, length, hidden)``.
    """

    def __init__(self, hidden: int, heads: int, size: int, dropout: float) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, heads * size, bias=False)
        self.key = nn.Linear(hidden, heads * size, bias=False)
        self.value = nn.Linear(hidden, heads * size, bias=False)
        self.output = nn.Linear(heads * size, hidden, bias=False)
        self.size, self.dropout = size, dropout

    def forward(self, queries: Tensor, states: Tensor, positions: Tensor | None) -> Tensor:
        """Give for every query a mean of the states."""
        seen = F.scaled_dot_product_attention(
            self._by_head(self.query(queries)),
            self._by_head(self.key(states)),
            self._by_head(self.value(states)),
            attn_mask=positions,
            dropout_p=self.dropout if self.training else 0.0,
            scale=1.0,
        )
        return self.output(seen.transpose(1, 2).flatten(2))

    def _by_head(self, x: Tensor) -> Tensor:
        """Turn ``(batch, length, heads × size)`` into ``(batch, heads, length, size)``."""
        return x.unflatten(2, (-1, self.size)).transpose(1, 2)


class T5Block(nn.Module):
    """Attention, in a decoder also to the encoder's states, and a feed-forward network.

    Each is normalised before and has a shortcut.

    Shapes: ``(batch, length, hidden)`` to the same.
    """

    def __init__(
        self, hidden: int, inner: int, heads: int, size: int, dropout: float, decoder: bool
    ) -> None:
        super().__init__()
        sizes = (hidden, heads, size, dropout)
        self.attention_norm = nn.RMSNorm(hidden, _EPSILON)
        self.attention = T5Attention(*sizes)
        if decoder:
            self.source_norm = nn.RMSNorm(hidden, _EPSILON)
            self.source_attention = T5Attention(*sizes)
        self.norm = nn.RMSNorm(hidden, _EPSILON)
        self.inner = nn.Linear(hidden, inner, bias=False)
        self.output = nn.Linear(inner, hidden, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, positions: Tensor, states: Tensor | None = None) -> Tensor:
        """Apply all; ``states`` are the encoder's, for a decoder."""
        normed = self.attention_norm(x)
        x = x + self.dropout(self.attention(normed, normed, positions))
        if states is not None:
            x = x + self.dropout(self.source_attention(self.source_norm(x), states, None))
        inner = self.dropout(F.relu(self.inner(self.norm(x))))
        return x + self.dropout(self.output(inner))


class T5(nn.Module):
    """One embedding for source, target and, scaled, the projection; blocks of both sides.

    Shapes: source and target tokens, ``(batch, length)``, to logits ``(batch, length,
    vocabulary)``.
    """

    def __init__(
        self,
        vocabulary: int = 32_128,
        hidden: int = 512,
        inner: int = 2048,
        layers: int = 6,
        heads: int = 8,
        head_size: int = 64,
        dropout: float = 0.1,
        tied: bool = True,
    ) -> None:
        super().__init__()
        self.source = nn.Embedding(vocabulary, hidden)
        self.target = nn.Embedding(vocabulary, hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)
        self.scale = hidden**-0.5 if tied else 1.0
        sizes = (hidden, inner, heads, head_size, dropout)
        self.encoder_positions = RelativePositions(heads, causal=False)
        self.encoder = nn.ModuleList(T5Block(*sizes, decoder=False) for _ in range(layers))
        self.encoder_norm = nn.RMSNorm(hidden, _EPSILON)
        self.decoder_positions = RelativePositions(heads, causal=True)
        self.decoder = nn.ModuleList(T5Block(*sizes, decoder=True) for _ in range(layers))
        self.decoder_norm = nn.RMSNorm(hidden, _EPSILON)
        self.dropout = nn.Dropout(dropout)
        self._initialise(hidden, inner, heads, head_size)
        if tied:
            self.target.weight = self.head.weight = self.source.weight

    def _initialise(self, hidden: int, inner: int, heads: int, head_size: int) -> None:
        """Draw weights as the published code does: attention does not divide by √size."""
        for embedding in (self.source, self.target):
            nn.init.normal_(embedding.weight)
        nn.init.normal_(self.head.weight, std=hidden**-0.5)
        for module in self.modules():
            if isinstance(module, RelativePositions):
                nn.init.normal_(module.numbers.weight, std=hidden**-0.5)
            elif isinstance(module, T5Attention):
                nn.init.normal_(module.query.weight, std=(hidden * head_size) ** -0.5)
                nn.init.normal_(module.key.weight, std=hidden**-0.5)
                nn.init.normal_(module.value.weight, std=hidden**-0.5)
                nn.init.normal_(module.output.weight, std=(heads * head_size) ** -0.5)
            elif isinstance(module, T5Block):
                nn.init.normal_(module.inner.weight, std=hidden**-0.5)
                nn.init.normal_(module.output.weight, std=inner**-0.5)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Give the logits of the token that follows each target token."""
        states = self.dropout(self.source(source))
        positions = self.encoder_positions(source.shape[1], states)
        for block in self.encoder:
            states = block(states, positions)
        states = self.dropout(self.encoder_norm(states))
        x = self.dropout(self.target(target))
        positions = self.decoder_positions(target.shape[1], x)
        for block in self.decoder:
            x = block(x, positions, states)
        return self.head(self.dropout(self.decoder_norm(x)) * self.scale)


def t5(
    batch_size: int = 8,
    sequence_length: int = 512,
    vocabulary: int = 32_128,
    hidden: int = 512,
    inner: int = 2048,
    layers: int = 6,
    heads: int = 8,
    head_size: int = 64,
    dropout: float = 0.1,
    tied: bool = True,
) -> Task:
    """Return T5, in the size called small, on random sentences.

    Args:
        batch_size: pairs of sequences in a minibatch.
        sequence_length: tokens of a sequence, source and target alike.
        vocabulary: number of tokens.
        hidden: units of every layer.
        inner: units inside the feed-forward networks.
        layers: of the encoder, and of the decoder.
        heads: of every attention.
        head_size: units of a head.
        dropout: probability, as everywhere in T5.
        tied: one embedding for source, target and projection, as published.
    """
    module = T5(vocabulary, hidden, inner, layers, heads, head_size, dropout, tied)
    return translation_task(module, batch_size, sequence_length, vocabulary, vocabulary)
