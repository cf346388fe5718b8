"""GPT-2 (Radford et al. 2019), a decoder of text, and what all models of language have in common.

Multi-head attention is that of Vaswani et al. 2017 (arXiv:1706.03762). Queries, keys and values
have a linear layer each, where the published code has one for all three.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.models.task import Task


def token_loss(logits: Tensor, following: Tensor) -> Tensor:
    """Return the mean cross entropy over all tokens.

    Args:
        logits: ``(batch, target length, vocabulary)``.
        following: the right tokens, ``(batch, target length)``.
    """
    return F.cross_entropy(logits.flatten(0, 1), following.flatten())


def token_accuracy(logits: Tensor, following: Tensor) -> Tensor:
    """Return the share of tokens of every sample that are predicted rightly, ``(batch,)``."""
    return (logits.argmax(-1) == following).float().mean(1)


def random_sentences(batch_size: int, length: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Return random tokens and the one that follows each, both ``(batch size, length)``."""
    sentences = torch.randint(vocabulary, (batch_size, length + 1))
    return sentences[:, :-1].contiguous(), sentences[:, 1:].contiguous()


class _CausalAttention(nn.Module):
    """For every head, softmax(Q Kᵀ / √(hidden / heads)) V over a token and those ahead of it.

    Shapes: ``(batch, length, hidden)`` to the same.
    """

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, hidden)
        self.heads, self.dropout = heads, dropout

    def forward(self, x: Tensor) -> Tensor:
        seen = F.scaled_dot_product_attention(
            self._by_head(self.query(x)),
            self._by_head(self.key(x)),
            self._by_head(self.value(x)),
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True,
        )
        return self.output(seen.transpose(1, 2).flatten(2))

    def _by_head(self, x: Tensor) -> Tensor:
        """Turn ``(batch, length, hidden)`` into ``(batch, heads, length, hidden / heads)``."""
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class _Block(nn.Module):
    """Causal attention and a feed-forward network, each normalised before and with a shortcut."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden)
        self.attention = _CausalAttention(hidden, heads, dropout)
        self.norm = nn.LayerNorm(hidden)
        self.inner = nn.Linear(hidden, 4 * hidden)
        self.output = nn.Linear(4 * hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        inner = F.gelu(self.inner(self.norm(x)), approximate="tanh")
        return x + self.dropout(self.output(inner))


class _GPT2(nn.Module):
    """Embeddings of tokens and positions, blocks, and a projection on the vocabulary.

    Shapes: tokens ``(batch, length)`` to logits ``(batch, length, vocabulary)``.
    """

    def __init__(
        self,
        vocabulary: int,
        hidden: int,
        layers: int,
        heads: int,
        positions: int,
        dropout: float,
        tied: bool,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(positions, hidden)
        self.dropout = nn.Dropout(dropout)
        blocks = [_Block(hidden, heads, dropout) for _ in range(layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for block in blocks:
            for layer in (block.attention.output, block.output):
                nn.init.normal_(layer.weight, std=0.02 / (2 * layers) ** 0.5)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.dropout(self.tokens(tokens) + self.positions.weight[: tokens.shape[1]])
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def gpt2(
    batch_size: int = 8,
    sequence_length: int = 1024,
    vocabulary: int = 50_257,
    hidden: int = 768,
    layers: int = 12,
    heads: int = 12,
    positions: int = 1024,
    dropout: float = 0.1,
    tied: bool = True,
) -> Task:
    """Return GPT-2, the smallest of the four, on random text.

    Args:
        positions: the longest sequence that the model can read.
        tied: project on the vocabulary with the weights of its embedding, as published.
    """
    module = _GPT2(vocabulary, hidden, layers, heads, positions, dropout, tied)
    tokens, following = random_sentences(batch_size, sequence_length, vocabulary)
    return Task(module, (tokens,), following, token_loss, token_accuracy)
