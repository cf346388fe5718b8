"""GNMT (Wu et al. 2016, arXiv:1609.08144), translating in drl-pp, PipeDream and pipeoptim.

The source and the target sentence enter on branches of their own, which the attention joins::

    source ─ embedding ─ bidirectional LSTM ─ LSTM ─ LSTM ─ LSTM ─┐
    target ─ embedding ─ LSTM ─────────────────────────────── attention
                           └──────────────────┬─────────────────┤ context
                                             LSTM ─ LSTM ─ LSTM ─ projection
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from drlpp.models.task import Task
from drlpp.models.zoo.language import translation_task


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
    """LSTMs that read, besides the layer below, the context found by the first one's states.

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


def gnmt4(
    batch_size: int = 128,
    sequence_length: int = 50,
    vocabulary: int = 32_000,
    hidden: int = 256,
    layers: int = 4,
    dropout: float = 0.2,
) -> Task:
    """Return GNMT-4 of drl-pp on random sentences.

    The paper's "4 LSTM layers version" with "256 hidden units" is read as 4 encoder layers, the
    first of them bidirectional, and 4 decoder layers, as GNMT counts. PipeDream counts both sides
    together: by its count this model is ``layers=2``. Sentences in the paper have 20 to 50 words;
    here all have the same length.

    Args:
        batch_size: pairs of sentences in a minibatch.
        sequence_length: tokens of a sentence, source and target alike.
        vocabulary: tokens that each language has; the paper does not give it, GNMT's is 32,000.
        hidden: units of every LSTM, and size of the embeddings.
        layers: of the encoder, and of the decoder.
        dropout: probability, before every LSTM.
    """
    module = GNMT(vocabulary, hidden, layers, dropout)
    return translation_task(module, batch_size, sequence_length, vocabulary, vocabulary)


def gnmt8(
    batch_size: int = 64,
    sequence_length: int = 50,
    vocabulary: int = 32_320,
    hidden: int = 1024,
    layers: int = 4,
    dropout: float = 0.2,
) -> Task:
    """Return GNMT-8 of PipeDream and pipeoptim: 4 encoder and 4 decoder layers of 1024 units.

    Sizes are those of PipeDream's published profile; the arguments are those of :func:`gnmt4`.
    """
    module = GNMT(vocabulary, hidden, layers, dropout)
    return translation_task(module, batch_size, sequence_length, vocabulary, vocabulary)


def gnmt16(
    batch_size: int = 64,
    sequence_length: int = 50,
    vocabulary: int = 32_320,
    hidden: int = 1024,
    layers: int = 8,
    dropout: float = 0.2,
) -> Task:
    """Return GNMT-16 of PipeDream and pipeoptim: 8 encoder and 8 decoder layers of 1024 units.

    The arguments are those of :func:`gnmt4`.
    """
    module = GNMT(vocabulary, hidden, layers, dropout)
    return translation_task(module, batch_size, sequence_length, vocabulary, vocabulary)
