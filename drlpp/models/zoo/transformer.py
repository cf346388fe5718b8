"""The 12-layer Transformer of pipemare §4.1 (Vaswani et al. 2017, arXiv:1706.03762).

Six encoder and six decoder layers in the sizes of fairseq, whose implementation pipemare trains::

    source ─ embedding ─ encoder layers ─────────┬── … ──┐
    target ─ embedding ─────────────────── decoder layer … decoder layer ─ projection
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.errors import InvalidInput
from drlpp.models.task import Task
from drlpp.models.zoo.language import MultiHeadAttention, smoothed_token_loss, translation_task

Sharing = Literal["none", "decoder", "all"]


class PositionalEmbedding(nn.Module):
    """Embedded tokens times √hidden, plus sinusoids of their positions.

    Shapes: ``(batch, length)`` to ``(batch, length, hidden)``.
    """

    sinusoids: Tensor

    def __init__(self, vocabulary: int, hidden: int, positions: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        nn.init.normal_(self.tokens.weight, std=hidden**-0.5)
        self.dropout = nn.Dropout(dropout)
        self.scale = math.sqrt(hidden)
        rates = torch.exp(torch.arange(0, hidden, 2) * (-math.log(10_000) / hidden))
        angles = torch.arange(positions).unsqueeze(1) * rates
        sinusoids = torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)
        self.register_buffer("sinusoids", sinusoids[:, :hidden], persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Look up the tokens and add their positions."""
        return self.dropout(self.scale * self.tokens(tokens) + self.sinusoids[: tokens.shape[1]])


class FeedForward(nn.Module):
    """Two linear layers with a ReLU between. Shapes: ``(…, hidden)`` to the same."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(hidden, inner)
        self.fc2 = nn.Linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Apply both."""
        return self.fc2(F.relu(self.fc1(x)))


class EncoderLayer(nn.Module):
    """Attention and a feed-forward network, each with a shortcut and a normalisation behind it.

    Shapes: ``(batch, source length, hidden)`` to the same.
    """

    def __init__(self, hidden: int, inner: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(hidden, heads, dropout=0.0)
        self.attention_norm = nn.LayerNorm(hidden)
        self.feed_forward = FeedForward(hidden, inner)
        self.feed_forward_norm = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Apply both."""
        x = self.attention_norm(x + self.dropout(self.attention(x, x)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


class DecoderLayer(nn.Module):
    """An encoder layer, but with attention to earlier tokens and then to the encoder's states.

    Shapes: ``(batch, target length, hidden)`` and states ``(batch, source length, hidden)`` to
    ``(batch, target length, hidden)``.
    """

    def __init__(self, hidden: int, inner: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(hidden, heads, dropout=0.0, causal=True)
        self.attention_norm = nn.LayerNorm(hidden)
        self.source_attention = MultiHeadAttention(hidden, heads, dropout=0.0)
        self.source_attention_norm = nn.LayerNorm(hidden)
        self.feed_forward = FeedForward(hidden, inner)
        self.feed_forward_norm = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, states: Tensor) -> Tensor:
        """Apply all three."""
        x = self.attention_norm(x + self.dropout(self.attention(x, x)))
        x = self.source_attention_norm(x + self.dropout(self.source_attention(x, states)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


class Transformer(nn.Module):
    """Encoder and decoder with as many layers each, and a projection on the target's vocabulary.

    Shapes: source ``(batch, source length)`` and target tokens ``(batch, target length)`` to
    logits ``(batch, target length, target vocabulary)``.

    Raises:
        InvalidInput: if all embeddings are to be shared by different vocabularies.
    """

    def __init__(
        self,
        source_vocabulary: int = 8848,
        target_vocabulary: int = 6632,
        hidden: int = 512,
        inner: int = 1024,
        heads: int = 4,
        layers: int = 6,
        positions: int = 1024,
        dropout: float = 0.3,
        shared_embeddings: Sharing = "none",
    ) -> None:
        super().__init__()
        self.source = PositionalEmbedding(source_vocabulary, hidden, positions, dropout)
        self.target = PositionalEmbedding(target_vocabulary, hidden, positions, dropout)
        sizes = (hidden, inner, heads, dropout)
        self.encoder = nn.ModuleList(EncoderLayer(*sizes) for _ in range(layers))
        self.decoder = nn.ModuleList(DecoderLayer(*sizes) for _ in range(layers))
        self.projection = nn.Linear(hidden, target_vocabulary, bias=False)
        nn.init.normal_(self.projection.weight, std=hidden**-0.5)
        for module in (*self.encoder.modules(), *self.decoder.modules()):
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        if shared_embeddings not in ("none", "decoder", "all"):
            raise InvalidInput(
                f"shared_embeddings is {shared_embeddings!r}, not none, decoder or all"
            )
        if shared_embeddings != "none":
            self.projection.weight = self.target.tokens.weight
        if shared_embeddings == "all":
            if source_vocabulary != target_vocabulary:
                raise InvalidInput(
                    f"vocabularies of {source_vocabulary} and {target_vocabulary} tokens cannot "
                    "share embeddings; make them one"
                )
            self.source.tokens.weight = self.target.tokens.weight

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Give the logits of the token that follows each target token."""
        states = self.source(source)
        for layer in self.encoder:
            states = layer(states)
        x = self.target(target)
        for layer in self.decoder:
            x = layer(x, states)
        return self.projection(x)


def transformer(
    batch_size: int = 64,
    sequence_length: int = 50,
    source_vocabulary: int = 8848,
    target_vocabulary: int = 6632,
    hidden: int = 512,
    inner: int = 1024,
    heads: int = 4,
    layers: int = 6,
    dropout: float = 0.3,
    shared_embeddings: Sharing = "none",
) -> Task:
    """Return the 12-layer Transformer on random sentences; the defaults are for IWSLT14.

    For WMT17 they are ``inner=2048, heads=8, dropout=0.1`` and a vocabulary of one's choice. The
    label smoothing is 0.1 (table 7). pipemare cuts the model into 93 stages of a weight each,
    which are the weights of fairseq's model when its three embeddings are not shared.

    Args:
        batch_size: pairs of sentences in a minibatch.
        sequence_length: tokens of a sentence, source and target alike, at most 1024.
        source_vocabulary: tokens of the source language.
        target_vocabulary: tokens of the target language.
        hidden: units of every layer.
        inner: units inside the feed-forward networks.
        heads: of every attention.
        layers: of the encoder, and of the decoder.
        dropout: probability, behind embeddings, attention and feed-forward networks.
        shared_embeddings: ``none``; ``decoder``, of the target tokens and the projection; ``all``,
            of the source tokens too.

    Raises:
        InvalidInput: if all embeddings are to be shared by different vocabularies.
    """
    module = Transformer(
        source_vocabulary,
        target_vocabulary,
        hidden,
        inner,
        heads,
        layers,
        dropout=dropout,
        shared_embeddings=shared_embeddings,
    )
    return translation_task(
        module,
        batch_size,
        sequence_length,
        source_vocabulary,
        target_vocabulary,
        smoothed_token_loss,
    )
