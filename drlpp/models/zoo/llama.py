"""Decoders as they are built since Llama (Touvron et al. 2023, arXiv:2302.13971).

Root mean squares normalise, positions are rotations, feed-forward networks have a gate (SwiGLU),
and several heads of queries share one of keys and values (Ainslie et al. 2023, arXiv:2305.13245).
The published size is Llama 3.2's with 1.2 billion weights.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.errors import InvalidInput
from drlpp.models.task import Task
from drlpp.models.zoo.tokens import continuation_task

_EPSILON = 1e-5


class RotaryAttention(nn.Module):
    """Causal attention between linear layers without biases; positions rotate queries and keys.

    Shapes: ``(batch, length, hidden)`` to the same.

    Raises:
        InvalidInput: if heads cannot share the hidden units, or one another's keys, equally.
    """

    cosines: Tensor
    sines: Tensor

    def __init__(
        self, hidden: int, heads: int, key_heads: int, positions: int, base: float
    ) -> None:
        super().__init__()
        if min(heads, key_heads) < 1 or hidden % (2 * heads) or heads % key_heads:
            raise InvalidInput(
                f"{hidden} hidden units, {heads} heads and {key_heads} heads of keys do not go "
                "together: twice the heads have to divide the units, heads of keys the heads"
            )
        self.size = hidden // heads
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, key_heads * self.size, bias=False)
        self.value = nn.Linear(hidden, key_heads * self.size, bias=False)
        self.output = nn.Linear(hidden, hidden, bias=False)
        rates = base ** -(torch.arange(0, self.size, 2) / self.size)
        angles = torch.arange(positions).unsqueeze(1) * rates
        angles = torch.cat([angles, angles], dim=1)
        self.register_buffer("cosines", angles.cos(), persistent=False)
        self.register_buffer("sines", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Give for every position a mean of the values up to it."""
        seen = F.scaled_dot_product_attention(
            self._rotated(self._by_head(self.query(x))),
            self._rotated(self._by_head(self.key(x))),
            self._by_head(self.value(x)),
            is_causal=True,
            enable_gqa=True,
        )
        return self.output(seen.transpose(1, 2).flatten(2))

    def _by_head(self, x: Tensor) -> Tensor:
        """Turn ``(batch, length, heads × size)`` into ``(batch, heads, length, size)``."""
        return x.unflatten(2, (-1, self.size)).transpose(1, 2)

    def _rotated(self, x: Tensor) -> Tensor:
        """Rotate each pair of numbers, half of a head apart, by an angle for its position."""
        length = x.shape[2]
        first, second = x.chunk(2, dim=-1)
        turned = torch.cat([-second, first], dim=-1)
        return x * self.cosines[:length] + turned * self.sines[:length]


class GatedFeedForward(nn.Module):
    """SwiGLU (Shazeer 2020, arXiv:2002.05202). Shapes: ``(…, hidden)`` to the same."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, inner, bias=False)
        self.inner = nn.Linear(hidden, inner, bias=False)
        self.output = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the three layers."""
        return self.output(F.silu(self.gate(x)) * self.inner(x))


class LlamaBlock(nn.Module):
    """Attention and a feed-forward network, each normalised before and with a shortcut.

    Shapes: ``(batch, length, hidden)`` to the same.
    """

    def __init__(self, hidden: int, attention: nn.Module, feed_forward: nn.Module) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(hidden, _EPSILON)
        self.attention = attention
        self.norm = nn.RMSNorm(hidden, _EPSILON)
        self.feed_forward = feed_forward

    def forward(self, x: Tensor) -> Tensor:
        """Apply both."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.norm(x))


class Llama(nn.Module):
    """An embedding, blocks, and a projection on the vocabulary.

    Shapes: tokens ``(batch, length)`` to logits ``(batch, length, vocabulary)``.

    Args:
        feed_forward: makes the network of one block.
    """

    def __init__(
        self,
        vocabulary: int,
        hidden: int,
        layers: int,
        heads: int,
        key_heads: int,
        positions: int,
        base: float,
        tied: bool,
        feed_forward: Callable[[], nn.Module],
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        attention = (hidden, heads, key_heads, positions, base)
        self.blocks = nn.ModuleList(
            LlamaBlock(hidden, RotaryAttention(*attention), feed_forward()) for _ in range(layers)
        )
        self.norm = nn.RMSNorm(hidden, _EPSILON)
        self.head = nn.Linear(hidden, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Give the logits of the token that follows each."""
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def llama(
    batch_size: int = 4,
    sequence_length: int = 1024,
    vocabulary: int = 128_256,
    hidden: int = 2048,
    inner: int = 8192,
    layers: int = 16,
    heads: int = 32,
    key_heads: int = 8,
    base: float = 500_000.0,
    tied: bool = True,
) -> Task:
    """Return Llama 3.2 1B on random text, without its stretched positions beyond 8,192 tokens.

    Args:
        batch_size: sequences in a minibatch.
        sequence_length: tokens of a sequence.
        vocabulary: number of tokens.
        hidden: units of every layer.
        inner: units inside the feed-forward networks.
        layers: number of blocks.
        heads: of queries.
        key_heads: of keys and values.
        base: of the rotations; a larger one turns slower.
        tied: project on the vocabulary with the weights of its embedding, as published.

    Raises:
        InvalidInput: if heads cannot share the hidden units, or one another's keys, equally.
    """
    sizes = (vocabulary, hidden, layers, heads, key_heads, sequence_length, base, tied)
    module = Llama(*sizes, feed_forward=lambda: GatedFeedForward(hidden, inner))
    return continuation_task(module, batch_size, sequence_length, vocabulary)
