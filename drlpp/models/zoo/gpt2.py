"""GPT-2, a decoder of text (Radford et al. 2019)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.errors import InvalidInput
from drlpp.models.task import Task
from drlpp.models.zoo.language import MultiHeadAttention, continuation_task


class GPT2Block(nn.Module):
    """Causal attention and a feed-forward network, each normalised before and with a shortcut.

    Shapes: ``(batch, length, hidden)`` to the same.
    """

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden)
        self.attention = MultiHeadAttention(hidden, heads, dropout, causal=True)
        self.norm = nn.LayerNorm(hidden)
        self.inner = nn.Linear(hidden, 4 * hidden)
        self.output = nn.Linear(4 * hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Apply both."""
        normed = self.attention_norm(x)
        x = x + self.dropout(self.attention(normed, normed))
        inner = F.gelu(self.inner(self.norm(x)), approximate="tanh")
        return x + self.dropout(self.output(inner))


class GPT2(nn.Module):
    """Embeddings of tokens and positions, blocks, and a projection on the vocabulary.

    Queries, keys and values have a linear layer each, where the published code has one for all
    three.

    Shapes: tokens ``(batch, length)`` to logits ``(batch, length, vocabulary)``.
    """

    def __init__(
        self,
        vocabulary: int = 50_257,
        hidden: int = 768,
        layers: int = 12,
        heads: int = 12,
        positions: int = 1024,
        dropout: float = 0.1,
        tied: bool = True,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(positions, hidden)
        self.dropout = nn.Dropout(dropout)
        blocks = [GPT2Block(hidden, heads, dropout) for _ in range(layers)]
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
        """Give the logits of the token that follows each."""
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
        batch_size: sequences in a minibatch.
        sequence_length: tokens of a sequence, at most ``positions``.
        vocabulary: number of tokens.
        hidden: units of every layer; the feed-forward networks have four times as many.
        layers: number of blocks.
        heads: of the attention.
        positions: the longest sequence that the model can read.
        dropout: probability, as everywhere in GPT-2.
        tied: project on the vocabulary with the weights of its embedding, as published.

    Raises:
        InvalidInput: if a sequence is longer than the model can read.
    """
    if sequence_length > positions:
        raise InvalidInput(
            f"gpt2: sequence_length is {sequence_length}, but the model has {positions} positions"
        )
    module = GPT2(vocabulary, hidden, layers, heads, positions, dropout, tied)
    return continuation_task(module, batch_size, sequence_length, vocabulary)
