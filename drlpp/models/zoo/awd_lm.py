"""AWD-LM, PipeDream's language model (AWD-LSTM, Merity et al. 2017, arXiv:1708.02182).

Three LSTMs whose recurrent weights are dropped, and dropout masks that stay the same over a
sentence. A minibatch starts from states of zero, where the paper takes those of the text
before, so that minibatches may be in flight together.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.models.task import Task
from drlpp.models.zoo.language import random_sentences, token_accuracy, token_loss

Outputs = tuple[Tensor, Tensor, Tensor]


class Dropouts(NamedTuple):
    """The probability of every kind of dropout, as published for Penn Treebank.

    Attributes:
        words: whole words of the embedding.
        inputs: of the first LSTM.
        between: LSTMs.
        outputs: of the last LSTM.
        recurrent: weights from state to state.
    """

    words: float = 0.1
    inputs: float = 0.4
    between: float = 0.25
    outputs: float = 0.4
    recurrent: float = 0.5

    def times(self, factor: float) -> Dropouts:
        """Return all probabilities, multiplied."""
        return Dropouts(*(factor * value for value in self))


class LockedDropout(nn.Module):
    """Dropout with one mask for all tokens of a sentence (Gal and Ghahramani 2016).

    Shapes: ``(batch, length, features)`` to the same.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Drop features of every sentence."""
        ones = torch.ones(x.shape[0], 1, x.shape[2], dtype=x.dtype, device=x.device)
        return x * F.dropout(ones, self.p, self.training)


class WordDroppedEmbedding(nn.Embedding):
    """An embedding that drops whole words, wherever they occur in the minibatch.

    Shapes: tokens ``(batch, length)`` to ``(batch, length, features)``.
    """

    def __init__(self, vocabulary: int, features: int, p: float) -> None:
        super().__init__(vocabulary, features)
        self.p = p
        nn.init.uniform_(self.weight, -0.1, 0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        """Look up the tokens."""
        weight = self.weight
        ones = torch.ones(len(weight), 1, dtype=weight.dtype, device=weight.device)
        return F.embedding(tokens, F.dropout(ones, self.p, self.training) * weight)


class WeightDroppedLSTM(nn.LSTM):
    """An LSTM with dropout on its weights from state to state (DropConnect).

    Shapes: ``(batch, length, inputs)`` to ``(batch, length, hidden)``; the states are not given.
    """

    weight_ih_l0: Tensor
    weight_hh_l0: Tensor
    bias_ih_l0: Tensor
    bias_hh_l0: Tensor

    def __init__(self, inputs: int, hidden: int, p: float) -> None:
        super().__init__(inputs, hidden, batch_first=True)
        self.p = p

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Run over a sentence, from states of zero."""
        state = torch.zeros(1, x.shape[0], self.hidden_size, dtype=x.dtype, device=x.device)
        recurrent = F.dropout(self.weight_hh_l0, self.p, self.training)
        weights = [self.weight_ih_l0, recurrent, self.bias_ih_l0, self.bias_hh_l0]
        output, _, _ = torch.lstm(
            x, (state, state), weights, True, 1, 0.0, self.training, False, True
        )
        return output


class AWDLM(nn.Module):
    """Embedding, three LSTMs, and a linear layer, which may have the embedding's weights.

    Shapes: tokens ``(batch, length)`` to logits ``(batch, length, vocabulary)`` and the last
    LSTM's output, ``(batch, length, embedding)``, with and without dropout.
    """

    def __init__(
        self,
        vocabulary: int = 10_000,
        embedding: int = 400,
        hidden: int = 1150,
        layers: int = 3,
        tied: bool = False,
        dropouts: Dropouts | None = None,
    ) -> None:
        super().__init__()
        dropouts = dropouts or Dropouts()
        self.encoder = WordDroppedEmbedding(vocabulary, embedding, dropouts.words)
        widths = [embedding] + [hidden] * (layers - 1) + [embedding]
        self.rnns = nn.ModuleList(
            WeightDroppedLSTM(inputs, outputs, dropouts.recurrent)
            for inputs, outputs in itertools.pairwise(widths)
        )
        between = [dropouts.between] * (layers - 1)
        self.dropouts = nn.ModuleList(LockedDropout(p) for p in (dropouts.inputs, *between))
        self.last_dropout = LockedDropout(dropouts.outputs)
        self.decoder = nn.Linear(embedding, vocabulary)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        if tied:
            self.decoder.weight = self.encoder.weight

    def forward(self, tokens: Tensor) -> Outputs:
        """Give the logits of the token that follows each token, and what the loss penalises."""
        x = self.encoder(tokens)
        for dropout, rnn in zip(self.dropouts, self.rnns, strict=True):
            x = rnn(dropout(x))
        dropped = self.last_dropout(x)
        return self.decoder(dropped), dropped, x


def regularized_loss(outputs: Outputs, following: Tensor) -> Tensor:
    """Return mean cross entropy + 2 · mean square of the outputs + 1 · that of their changes.

    The second term is the paper's activation regularisation (α = 2), on the output after dropout,
    the third its temporal one (β = 1), on the output before it.
    """
    logits, dropped, raw = outputs
    changes = raw[:, 1:] - raw[:, :-1]
    return token_loss(logits, following) + 2 * dropped.square().mean() + changes.square().mean()


def first_token_accuracy(outputs: Outputs, following: Tensor) -> Tensor:
    """Return the :func:`token_accuracy` of the logits."""
    return token_accuracy(outputs[0], following)


def awd_lm(
    batch_size: int = 80,
    sequence_length: int = 70,
    vocabulary: int = 10_000,
    embedding: int = 400,
    hidden: int = 1150,
    layers: int = 3,
    tied: bool = False,
    dropout: float = 1.0,
) -> Task:
    """Return AWD-LM on random text.

    Args:
        batch_size: pieces of text in a minibatch.
        sequence_length: tokens of a piece, at least 2.
        vocabulary: number of tokens, as in Penn Treebank.
        embedding: size of the embedding, and units of the last LSTM.
        hidden: units of the LSTMs before it.
        layers: number of LSTMs.
        tied: use the embedding's weights for the output as well, as the paper does. Stages that
            share them hold a copy each.
        dropout: factor on the published probabilities of all kinds of dropout.
    """
    module = AWDLM(vocabulary, embedding, hidden, layers, tied, Dropouts().times(dropout))
    tokens, following = random_sentences(batch_size, sequence_length, vocabulary)
    return Task(module, (tokens,), following, regularized_loss, first_token_accuracy)
