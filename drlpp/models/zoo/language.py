"""What the zoo's models of language have in common: sentences, losses and scores, and attention.

Multi-head attention is that of Vaswani et al. 2017 (arXiv:1706.03762).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.errors import InvalidInput
from drlpp.models.task import Task


def token_loss(logits: Tensor, following: Tensor) -> Tensor:
    """Return the mean cross entropy over all tokens.

    Args:
        logits: ``(batch, target length, vocabulary)``.
        following: the right tokens, ``(batch, target length)``.
    """
    return F.cross_entropy(logits.flatten(0, 1), following.flatten())


def smoothed_token_loss(logits: Tensor, following: Tensor) -> Tensor:
    """Return :func:`token_loss` with a label smoothing of 0.1."""
    return F.cross_entropy(logits.flatten(0, 1), following.flatten(), label_smoothing=0.1)


def token_accuracy(logits: Tensor, following: Tensor) -> Tensor:
    """Return the share of tokens of every sample that are predicted rightly, ``(batch,)``."""
    return (logits.argmax(-1) == following).float().mean(1)


def random_sentences(batch_size: int, length: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Return random tokens and, for each, the next one: both ``(batch size, length)``."""
    sentences = torch.randint(vocabulary, (batch_size, length + 1))
    return sentences[:, :-1].contiguous(), sentences[:, 1:].contiguous()


def continuation_task(
    module: nn.Module, batch_size: int, sequence_length: int, vocabulary: int
) -> Task:
    """Give ``module`` random text ``(batch size, sequence length)`` to continue, token by token."""
    tokens, following = random_sentences(batch_size, sequence_length, vocabulary)
    return Task(module, (tokens,), following, token_loss, token_accuracy)


def translation_task(
    module: nn.Module,
    batch_size: int,
    sequence_length: int,
    source_vocabulary: int,
    target_vocabulary: int,
    loss: Callable[[Tensor, Tensor], Tensor] = token_loss,
) -> Task:
    """Give ``module`` random sentences to translate, with teacher forcing.

    Inputs are source and target tokens, ``(batch size, sequence length)`` each; for every target
    token the module is asked for the one that follows.
    """
    source = torch.randint(source_vocabulary, (batch_size, sequence_length))
    target, following = random_sentences(batch_size, sequence_length, target_vocabulary)
    return Task(module, (source, target), following, loss, token_accuracy)


class MultiHeadAttention(nn.Module):
    """Softmax(Q Kᵀ / √(hidden / heads)) V for every head, between linear layers.

    Shapes: queries ``(batch, length, hidden)`` and states ``(batch, read length, hidden)`` to
    ``(batch, length, hidden)``.

    Raises:
        InvalidInput: if the heads cannot share the hidden units equally.
    """

    def __init__(self, hidden: int, heads: int, dropout: float, causal: bool = False) -> None:
        super().__init__()
        if hidden % heads:
            raise InvalidInput(
                f"{hidden} hidden units cannot be divided among {heads} heads; choose a number of "
                "heads that divides them"
            )
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, hidden)
        self.heads, self.dropout, self.causal = heads, dropout, causal

    def forward(self, queries: Tensor, states: Tensor) -> Tensor:
        """Give for every query a mean of the states; a causal one sees none that comes later."""
        seen = F.scaled_dot_product_attention(
            self._by_head(self.query(queries)),
            self._by_head(self.key(states)),
            self._by_head(self.value(states)),
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal,
        )
        return self.output(seen.transpose(1, 2).flatten(2))

    def _by_head(self, x: Tensor) -> Tensor:
        """Turn ``(batch, length, hidden)`` into ``(batch, heads, length, hidden / heads)``."""
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)
