"""Recurrent models: GNMT, AWD-LM, S2VT and Residual LSTM.

GNMT (Wu et al. 2016, arXiv:1609.08144) translates in drl-pp, PipeDream and pipeoptim. The source
and the target sentence enter on branches of their own, which the attention joins::

    source ─ embedding ─ bidirectional LSTM ─ LSTM ─ LSTM ─ LSTM ─┐
    target ─ embedding ─ LSTM ─────────────────────────────── attention
                           └──────────────────┬─────────────────┤ context
                                             LSTM ─ LSTM ─ LSTM ─ projection

AWD-LM is PipeDream's language model (AWD-LSTM, Merity et al. 2017, arXiv:1708.02182), S2VT its
captioning of videos (Venugopalan et al. 2015, arXiv:1505.00487), Residual LSTM (Kim et al. 2017,
arXiv:1701.03360) classifies reviews in pipeoptim §V.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.models.task import Task
from drlpp.models.zoo.images import is_correct
from drlpp.models.zoo.language import random_sentences, token_accuracy, token_loss


class _Encoder(nn.Module):
    """A bidirectional LSTM, then LSTMs with residual connections from the third layer on."""

    def __init__(self, vocabulary: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.bidirectional = nn.LSTM(hidden, hidden, batch_first=True, bidirectional=True)
        widths = [2 * hidden] + [hidden] * (layers - 2)
        self.layers = nn.ModuleList(nn.LSTM(width, hidden, batch_first=True) for width in widths)
        self.dropout = nn.Dropout(dropout)

    def forward(self, source: Tensor) -> Tensor:
        x, _ = self.bidirectional(self.dropout(self.embedding(source)))
        for index, layer in enumerate(self.layers):
            out, _ = layer(self.dropout(x))
            x = out + x if index > 0 else out
        return x


class _AdditiveAttention(nn.Module):
    """Bahdanau's attention of query q and key k: g · v / ‖v‖ · tanh(W_q q + W_k k + b)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.vector = nn.Parameter(torch.empty(hidden).uniform_(-0.1, 0.1))
        self.gain = nn.Parameter(torch.full((), hidden**-0.5))
        self.bias = nn.Parameter(torch.zeros(hidden))

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        pairs = self.query(queries).unsqueeze(2) + self.key(keys).unsqueeze(1) + self.bias
        vector = self.gain * self.vector / self.vector.norm()
        scores = torch.tanh(pairs) @ vector
        return scores.softmax(dim=-1) @ keys


class _Decoder(nn.Module):
    """LSTMs that read, besides the layer below, the context found by the first one's states."""

    def __init__(self, vocabulary: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.first = nn.LSTM(hidden, hidden, batch_first=True)
        self.attention = _AdditiveAttention(hidden)
        self.layers = nn.ModuleList(
            nn.LSTM(2 * hidden, hidden, batch_first=True) for _ in range(layers - 1)
        )
        self.dropout = nn.Dropout(dropout)
        self.projection = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor, states: Tensor) -> Tensor:
        x, _ = self.first(self.dropout(self.embedding(tokens)))
        context = self.attention(x, states)
        for index, layer in enumerate(self.layers):
            out, _ = layer(torch.cat([self.dropout(x), context], dim=-1))
            x = out + x if index > 0 else out
        return self.projection(x)


class _GNMT(nn.Module):
    """Encoder, attention and decoder, with teacher forcing.

    As in public implementations, attention starts from the first decoder layer's state at the same
    token, so that each layer runs over the whole sentence at once.
    """

    def __init__(self, vocabulary: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.encoder = _Encoder(vocabulary, hidden, layers, dropout)
        self.decoder = _Decoder(vocabulary, hidden, layers, dropout)
        for module in self.modules():
            if isinstance(module, nn.LSTM | nn.Linear | nn.Embedding):
                for weight in module.parameters():
                    nn.init.uniform_(weight, -0.1, 0.1)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.decoder(target, self.encoder(source))


def gnmt(
    batch_size: int = 64,
    sequence_length: int = 50,
    vocabulary: int = 32_320,
    hidden: int = 1024,
    layers: int = 4,
    dropout: float = 0.2,
) -> Task:
    """Return GNMT on random sentences: for each target token the next one is asked for.

    The defaults are GNMT-8 of PipeDream and pipeoptim, in the sizes of PipeDream's published
    profile: 4 encoder and 4 decoder layers of 1024 units. drl-pp's "4 LSTM layers version" with
    "256 hidden units" is read as 4 and 4 layers as well, as GNMT counts; by PipeDream's count, of
    both sides together, it is ``layers=2``. Its sentences have 20 to 50 words; here all have the
    same length.

    Args:
        layers: of the encoder, the first of them bidirectional, and of the decoder.
    """
    module = _GNMT(vocabulary, hidden, layers, dropout)
    source = torch.randint(vocabulary, (batch_size, sequence_length))
    target, following = random_sentences(batch_size, sequence_length, vocabulary)
    return Task(module, (source, target), following, token_loss, token_accuracy)


class _LockedDropout(nn.Module):
    """Dropout with one mask for all tokens of a sentence (Gal and Ghahramani 2016)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        ones = torch.ones(x.shape[0], 1, x.shape[2], dtype=x.dtype, device=x.device)
        return x * F.dropout(ones, self.p, self.training)


class _WordDroppedEmbedding(nn.Embedding):
    """An embedding that drops whole words, wherever they occur in the minibatch."""

    def __init__(self, vocabulary: int, features: int, p: float) -> None:
        super().__init__(vocabulary, features)
        self.p = p
        nn.init.uniform_(self.weight, -0.1, 0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        weight = self.weight
        ones = torch.ones(len(weight), 1, dtype=weight.dtype, device=weight.device)
        return F.embedding(tokens, F.dropout(ones, self.p, self.training) * weight)


class _WeightDroppedLSTM(nn.LSTM):
    """An LSTM with dropout on its weights from state to state (DropConnect)."""

    def __init__(self, inputs: int, hidden: int, p: float) -> None:
        super().__init__(inputs, hidden, batch_first=True)
        self.p = p

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        state = torch.zeros(1, x.shape[0], self.hidden_size, dtype=x.dtype, device=x.device)
        into, recurrent, *biases = self.all_weights[0]
        weights = [into, F.dropout(recurrent, self.p, self.training), *biases]
        output, _, _ = torch.lstm(
            x, (state, state), weights, True, 1, 0.0, self.training, False, True
        )
        return output


class _AWDLM(nn.Module):
    """Embedding, LSTMs, and a linear layer, which may have the embedding's weights.

    The probabilities of dropout are those published for Penn Treebank, times ``dropout``. A
    minibatch starts from states of zero, where the paper takes those of the text before, so that
    minibatches may be in flight together.

    Shapes: tokens ``(batch, length)`` to logits ``(batch, length, vocabulary)`` and the last
    LSTM's output, ``(batch, length, embedding)``, with and without dropout.
    """

    def __init__(
        self, vocabulary: int, embedding: int, hidden: int, layers: int, tied: bool, dropout: float
    ) -> None:
        super().__init__()
        self.encoder = _WordDroppedEmbedding(vocabulary, embedding, dropout * 0.1)
        widths = [embedding] + [hidden] * (layers - 1) + [embedding]
        self.rnns = nn.ModuleList(
            _WeightDroppedLSTM(inputs, outputs, dropout * 0.5)
            for inputs, outputs in itertools.pairwise(widths)
        )
        between = [dropout * 0.25] * (layers - 1)
        self.dropouts = nn.ModuleList(map(_LockedDropout, (dropout * 0.4, *between)))
        self.last_dropout = _LockedDropout(dropout * 0.4)
        self.decoder = nn.Linear(embedding, vocabulary)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        if tied:
            self.decoder.weight = self.encoder.weight

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.encoder(tokens)
        for dropout, rnn in zip(self.dropouts, self.rnns, strict=True):
            x = rnn(dropout(x))
        dropped = self.last_dropout(x)
        return self.decoder(dropped), dropped, x


def regularized_loss(outputs: tuple[Tensor, Tensor, Tensor], following: Tensor) -> Tensor:
    """Return mean cross entropy + 2 · mean square of the outputs + 1 · that of their changes.

    The second term is the paper's activation regularisation (α = 2), on the output after dropout,
    the third its temporal one (β = 1), on the output before it.
    """
    logits, dropped, raw = outputs
    changes = raw[:, 1:] - raw[:, :-1]
    return token_loss(logits, following) + 2 * dropped.square().mean() + changes.square().mean()


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
    """Return AWD-LM on random text of at least 2 tokens, with Penn Treebank's vocabulary.

    Args:
        embedding: size of the embedding, and units of the last LSTM.
        tied: use the embedding's weights for the output as well, as the paper does. Stages that
            share them hold a copy each.
        dropout: factor on the published probabilities of all kinds of dropout.
    """
    module = _AWDLM(vocabulary, embedding, hidden, layers, tied, dropout)
    tokens, following = random_sentences(batch_size, sequence_length, vocabulary)

    def score(outputs: tuple[Tensor, Tensor, Tensor], following: Tensor) -> Tensor:
        return token_accuracy(outputs[0], following)

    return Task(module, (tokens,), following, regularized_loss, score)


class _S2VT(nn.Module):
    """Two LSTMs over all time steps, first those of the frames, then those of the caption.

    The first reads frames and then zeros; the second reads the first's output, joined with zeros
    and then words::

        step          1 … frames      frames + 1 … frames + words
        LSTM 1        frames          zeros
        LSTM 2        zeros           words                        ─▶ logits of the next words

    Shapes: frames' features ``(batch, frames, features)`` and words ``(batch, words)`` to logits
    ``(batch, words, vocabulary)``.
    """

    def __init__(
        self, vocabulary: int, features: int, embedding: int, hidden: int, dropout: float
    ) -> None:
        super().__init__()
        self.frames = nn.Linear(features, embedding)
        self.words = nn.Embedding(vocabulary, embedding)
        self.dropout = nn.Dropout(dropout)
        self.first = nn.LSTM(embedding, hidden, batch_first=True)
        self.second = nn.LSTM(embedding + hidden, hidden, batch_first=True)
        self.projection = nn.Linear(hidden, vocabulary)

    def forward(self, frames: Tensor, words: Tensor) -> Tensor:
        seen = self.dropout(self.frames(frames))
        said = self.dropout(self.words(words))
        silent = torch.zeros(said.shape, dtype=seen.dtype, device=seen.device)
        first, _ = self.first(torch.cat([seen, silent], dim=1))
        silent = torch.zeros(seen.shape, dtype=seen.dtype, device=seen.device)
        said = torch.cat([silent, said], dim=1)
        second, _ = self.second(torch.cat([said, first], dim=2))
        return self.projection(self.dropout(second[:, frames.shape[1] :]))


def s2vt(
    batch_size: int = 80,
    frames: int = 60,
    words: int = 20,
    vocabulary: int = 12_594,
    features: int = 4096,
    embedding: int = 500,
    hidden: int = 1000,
    dropout: float = 0.5,
) -> Task:
    """Return S2VT on random videos and captions, with the vocabulary that the paper counts in MSVD.

    Args:
        frames: of a video; with ``words`` the paper's 80 time steps.
        words: of a caption.
        features: of a frame, those of VGG's second linear layer.
        embedding: size to which frames and words are reduced.
    """
    module = _S2VT(vocabulary, features, embedding, hidden, dropout)
    videos = torch.randn(batch_size, frames, features)
    captions, following = random_sentences(batch_size, words, vocabulary)
    return Task(module, (videos, captions), following, token_loss, token_accuracy)


class ResidualLSTMLayer(nn.Module):
    """One layer of Residual LSTM, unrolled over the tokens.

    The shortcut from layer to layer ends before the output gate, so that it is not a sum around an
    ordinary LSTM. Layer l computes from x_t, the output of the layer below (⊙ is elementwise)::

        i_t = σ(W_xi x_t + W_hi h_{t−1} + w_ci ⊙ c_{t−1} + b_i)
        f_t = σ(W_xf x_t + W_hf h_{t−1} + w_cf ⊙ c_{t−1} + b_f)
        c_t = f_t ⊙ c_{t−1} + i_t ⊙ tanh(W_xc x_t + W_hc h_{t−1} + b_c)
        o_t = σ(W_xo x_t + W_ho h_{t−1} + W_co c_t + b_o)
        h_t = o_t ⊙ (W_p tanh(c_t) + x_t)

    From the first to the last use of the recurrent weights it is one operator. What it reads from
    the layer below arrives as one tensor.

    Shapes: ``(batch, length, hidden)`` to the same.
    """

    def __init__(self, hidden: int, cells: int) -> None:
        super().__init__()
        self.sizes = [cells, cells, cells, hidden]  # of the gates i, f, the candidate, o
        self.input = nn.Linear(hidden, sum(self.sizes))
        self.recurrent = nn.Linear(hidden, sum(self.sizes), bias=False)
        self.input_peephole = nn.Parameter(torch.zeros(cells))
        self.forget_peephole = nn.Parameter(torch.zeros(cells))
        self.output_peephole = nn.Linear(cells, hidden, bias=False)
        self.projection = nn.Linear(cells, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Give the layer's output for every token."""
        inputs, hidden = self.input.out_features, self.recurrent.in_features
        h = torch.zeros(x.shape[0], hidden, dtype=x.dtype, device=x.device)
        c = torch.zeros(x.shape[0], len(self.input_peephole), dtype=x.dtype, device=x.device)
        outputs = []
        for step in torch.cat([self.input(x), x], dim=2).unbind(1):
            from_input, shortcut = step.split([inputs, hidden], dim=1)
            gates = from_input + self.recurrent(h)
            into, forget, candidate, out = gates.split(self.sizes, dim=1)
            into = torch.sigmoid(into + self.input_peephole * c)
            forget = torch.sigmoid(forget + self.forget_peephole * c)
            c = forget * c + into * torch.tanh(candidate)
            out = torch.sigmoid(out + self.output_peephole(c))
            h = out * (self.projection(torch.tanh(c)) + shortcut)
            outputs.append(h)
        return torch.stack(outputs, dim=1)


class _ResidualLSTM(nn.Module):
    """An embedding, residual LSTM layers, and a linear layer on the last token's output.

    Shapes: tokens ``(batch, length)`` to ``(batch, classes)``.
    """

    def __init__(
        self, vocabulary: int, hidden: int, cells: int, layers: int, classes: int, dropout: float
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(ResidualLSTMLayer(hidden, cells) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.fc(self.dropout(x[:, -1]))


def residual_lstm(
    batch_size: int = 256,
    sequence_length: int = 100,
    vocabulary: int = 25_000,
    hidden: int = 512,
    cells: int = 1024,
    layers: int = 3,
    classes: int = 2,
    dropout: float = 0.5,
) -> Task:
    """Return Residual LSTM on random reviews, which it calls positive or negative.

    pipeoptim says no more than the name, IMDb and a minibatch of 256; ``cells`` (memory cells of a
    layer), units and layers are those of the smallest model of Kim et al.
    """
    module = _ResidualLSTM(vocabulary, hidden, cells, layers, classes, dropout)
    tokens = torch.randint(vocabulary, (batch_size, sequence_length))
    labels = torch.randint(classes, (batch_size,))
    return Task(module, (tokens,), labels, F.cross_entropy, is_correct)
