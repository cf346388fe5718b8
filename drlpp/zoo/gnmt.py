"""GNMT with 4 layers, the translation model of drl-pp §4.1 (Wu et al. 2016, arXiv:1609.08144).

The source and the target sentence enter on branches of their own, which the attention joins::

    source ─ embedding ─ bidirectional LSTM ─ LSTM ─ LSTM ─ LSTM ─┐
    target ─ embedding ─ LSTM ─────────────────────────────── attention
                           └──────────────────┬─────────────────┤ context
                                             LSTM ─ LSTM ─ LSTM ─ projection
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.task import Task


class Encoder(nn.Module):
    """A bidirectional LSTM, then LSTMs with residual connections from the third layer on.

    Shapes: tokens ``(batch, source length)`` to ``(batch, source length, hidden)``.
    """

    def __init__(self, vocabulary: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.bidirectional = nn.LSTM(hidden, hidden, batch_first=True, bidirectional=True)
        widths = [2 * hidden] + [hidden] * (layers - 2)
        self.layers = nn.ModuleList(nn.LSTM(width, hidden, batch_first=True) for width in widths)
        self.dropout = nn.Dropout(dropout)

    def forward(self, source: Tensor) -> Tensor:
        """Give the states of the last layer, one for each source token."""
        x, _ = self.bidirectional(self.dropout(self.embedding(source)))
        for index, layer in enumerate(self.layers):
            out, _ = layer(self.dropout(x))
            x = out + x if index > 0 else out
        return x


class AdditiveAttention(nn.Module):
    """Bahdanau's attention with the normalised score vector of GNMT's implementations.

    Score of query q and key k: g · v / ‖v‖ · tanh(W_q q + W_k k + b).

    Shapes: queries ``(batch, target length, hidden)`` and keys ``(batch, source length,
    hidden)`` to contexts ``(batch, target length, hidden)``.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.vector = nn.Parameter(torch.empty(hidden).uniform_(-0.1, 0.1))
        self.gain = nn.Parameter(torch.full((), hidden**-0.5))
        self.bias = nn.Parameter(torch.zeros(hidden))

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Give for every query the mean of the keys, weighted by the scores."""
        pairs = self.query(queries).unsqueeze(2) + self.key(keys).unsqueeze(1) + self.bias
        vector = self.gain * self.vector / self.vector.norm()
        scores = torch.tanh(pairs) @ vector
        return scores.softmax(dim=-1) @ keys


class Decoder(nn.Module):
    """LSTMs that read, beside the layer below, the context found by the first one's states.

    Shapes: tokens ``(batch, target length)`` and encoder states ``(batch, source length,
    hidden)`` to logits ``(batch, target length, vocabulary)``.
    """

    def __init__(self, vocabulary: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.first = nn.LSTM(hidden, hidden, batch_first=True)
        self.attention = AdditiveAttention(hidden)
        self.layers = nn.ModuleList(
            nn.LSTM(2 * hidden, hidden, batch_first=True) for _ in range(layers - 1)
        )
        self.dropout = nn.Dropout(dropout)
        self.projection = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor, states: Tensor) -> Tensor:
        """Give the logits of the token that follows each of ``tokens``."""
        x, _ = self.first(self.dropout(self.embedding(tokens)))
        context = self.attention(x, states)
        for index, layer in enumerate(self.layers):
            out, _ = layer(torch.cat([self.dropout(x), context], dim=-1))
            x = out + x if index > 0 else out
        return self.projection(x)


class GNMT(nn.Module):
    """Encoder, attention and decoder, with teacher forcing.

    Attention starts from the first decoder layer's state at the same token, as in public
    implementations, so that each layer runs over the whole sentence at once.

    Shapes: source ``(batch, source length)`` and target tokens ``(batch, target length)`` to
    logits ``(batch, target length, vocabulary)``.
    """

    def __init__(
        self, vocabulary: int = 32_000, hidden: int = 256, layers: int = 4, dropout: float = 0.2
    ) -> None:
        super().__init__()
        self.encoder = Encoder(vocabulary, hidden, layers, dropout)
        self.decoder = Decoder(vocabulary, hidden, layers, dropout)
        for module in self.modules():
            if isinstance(module, nn.LSTM | nn.Linear | nn.Embedding):
                for weight in module.parameters():
                    nn.init.uniform_(weight, -0.1, 0.1)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Give the logits of the token that follows each target token."""
        return self.decoder(target, self.encoder(source))


def token_loss(logits: Tensor, following: Tensor) -> Tensor:
    """The mean cross entropy over all tokens.

    Args:
        logits: ``(batch, target length, vocabulary)``.
        following: the right tokens, ``(batch, target length)``.
    """
    return F.cross_entropy(logits.flatten(0, 1), following.flatten())


def token_accuracy(logits: Tensor, following: Tensor) -> Tensor:
    """The share of tokens of every sample that are predicted rightly, ``(batch,)``."""
    return (logits.argmax(-1) == following).float().mean(1)


def gnmt4(
    batch_size: int = 128,
    sequence_length: int = 50,
    vocabulary: int = 32_000,
    hidden: int = 256,
    dropout: float = 0.2,
) -> Task:
    """GNMT-4 on random sentences.

    The paper's "4 LSTM layers version" with "256 hidden units" is read as 4 encoder layers, the
    first of them bidirectional, and 4 decoder layers, as GNMT counts. Sentences in the paper have
    20 to 50 words; here all have the same length.

    Args:
        batch_size: pairs of sentences in a minibatch.
        sequence_length: tokens of a sentence, source and target alike.
        vocabulary: tokens that each language has; the paper does not give it, GNMT's is 32,000.
        hidden: units of every LSTM, and size of the embeddings.
        dropout: probability, before every LSTM.
    """
    source = torch.randint(vocabulary, (batch_size, sequence_length))
    sentence = torch.randint(vocabulary, (batch_size, sequence_length + 1))
    # The decoder reads every token but the last and is asked for every token but the first.
    inputs, following = sentence[:, :-1].contiguous(), sentence[:, 1:].contiguous()
    return Task(
        GNMT(vocabulary, hidden, dropout=dropout),
        (source, inputs),
        following,
        token_loss,
        token_accuracy,
    )
