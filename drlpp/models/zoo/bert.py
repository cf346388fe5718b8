"""BERT-48, pipeoptim's largest model (Devlin et al. 2019, arXiv:1810.04805).

BERT-Large with 48 layers, with which Chimera (Li and Hoefler 2021) measures, and pipeoptim after
it. Trained as BERT is: masked words are guessed, and whether the second sentence follows the first.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.models.task import Task
from drlpp.models.zoo.language import MultiHeadAttention

Outputs = tuple[Tensor, Tensor]

_NOT_ASKED = -100  # what F.cross_entropy ignores


class Embeddings(nn.Module):
    """The sum of what is known of words, their positions and their sentences, normalised.

    Shapes: tokens and sentences (0 or 1), ``(batch, length)``, to ``(batch, length, hidden)``.
    """

    def __init__(self, vocabulary: int, hidden: int, positions: int, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(positions, hidden)
        self.sentences = nn.Embedding(2, hidden)
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, sentences: Tensor) -> Tensor:
        """Look up everything and add it."""
        positions = self.positions.weight[: tokens.shape[1]]
        return self.dropout(self.norm(self.words(tokens) + self.sentences(sentences) + positions))


class Layer(nn.Module):
    """Attention and a feed-forward network, each with a shortcut and a normalisation behind it.

    Shapes: ``(batch, length, hidden)`` to the same.
    """

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(hidden, heads, dropout)
        self.attention_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.intermediate = nn.Linear(hidden, 4 * hidden)
        self.output = nn.Linear(4 * hidden, hidden)
        self.output_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Apply both."""
        x = self.attention_norm(x + self.dropout(self.attention(x, x)))
        out = self.output(F.gelu(self.intermediate(x)))
        return self.output_norm(x + self.dropout(out))


class BERT(nn.Module):
    """Embeddings, layers, and the two heads of the pre-training.

    The head that guesses words has weights of its own, as in the published size of BERT-48.

    Shapes: tokens and sentences, ``(batch, length)``, to logits of the words ``(batch, length,
    vocabulary)`` and of the second sentence following or not, ``(batch, 2)``.
    """

    def __init__(
        self,
        vocabulary: int = 30_522,
        hidden: int = 1024,
        layers: int = 48,
        heads: int = 16,
        positions: int = 512,
        dropout: float = 0.1,
        tied: bool = False,
    ) -> None:
        super().__init__()
        self.embeddings = Embeddings(vocabulary, hidden, positions, dropout)
        self.layers = nn.ModuleList(Layer(hidden, heads, dropout) for _ in range(layers))
        self.transform = nn.Linear(hidden, hidden)
        self.transform_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.words = nn.Linear(hidden, vocabulary)
        self.pooler = nn.Linear(hidden, hidden)
        self.follows = nn.Linear(hidden, 2)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
        if tied:
            self.words.weight = self.embeddings.words.weight

    def forward(self, tokens: Tensor, sentences: Tensor) -> Outputs:
        """Give the logits of the words at every position, and of the second sentence."""
        x = self.embeddings(tokens, sentences)
        for layer in self.layers:
            x = layer(x)
        words = self.words(self.transform_norm(F.gelu(self.transform(x))))
        return words, self.follows(torch.tanh(self.pooler(x[:, 0])))


def pretraining_loss(outputs: Outputs, targets: Tensor) -> Tensor:
    """Return the mean cross entropy over the masked words, plus that of the second sentence.

    Args:
        outputs: those of :class:`BERT`.
        targets: ``(batch, length + 1)``: the right word where one is masked and −100 elsewhere,
            then 1 if the second sentence does not follow, else 0. Only with as many masked words
            in every sample is the mean over microbatches the one over the minibatch.
    """
    words, follows = outputs
    guessed = F.cross_entropy(words.flatten(0, 1), targets[:, :-1].flatten())
    return guessed + F.cross_entropy(follows, targets[:, -1])


def masked_accuracy(outputs: Outputs, targets: Tensor) -> Tensor:
    """Return the share of masked words of every sample that are guessed rightly, ``(batch,)``."""
    wanted = targets[:, :-1]
    asked = wanted != _NOT_ASKED
    right = (outputs[0].argmax(-1) == wanted) & asked
    return right.sum(1) / asked.sum(1)


def bert48(
    batch_size: int = 32,
    sequence_length: int = 128,
    vocabulary: int = 30_522,
    hidden: int = 1024,
    layers: int = 48,
    heads: int = 16,
    positions: int = 512,
    dropout: float = 0.1,
    tied: bool = False,
) -> Task:
    """Return BERT-48 on random sentences, of which 15% of the words are masked.

    Args:
        batch_size: pairs of sentences in a minibatch.
        sequence_length: tokens of a pair; pipeoptim §V-F has 128.
        vocabulary: number of tokens; the last one masks words.
        hidden: units of every layer; the feed-forward networks have four times as many.
        layers: number of layers.
        heads: of the attention.
        positions: the longest sequence that the model can read.
        dropout: probability, as everywhere in BERT.
        tied: guess words with the weights of their embedding, as the first BERT does. Stages that
            share them hold a copy each.
    """
    module = BERT(vocabulary, hidden, layers, heads, positions, dropout, tied)
    shape = (batch_size, sequence_length)
    words = torch.randint(vocabulary - 1, shape)
    sentences = (torch.arange(sequence_length) >= sequence_length // 2).long()
    # As many in every sample: those with the smallest random numbers.
    count = max(1, round(0.15 * sequence_length))
    masked = torch.rand(shape).argsort(1).argsort(1) < count
    tokens = words.masked_fill(masked, vocabulary - 1)
    follows = torch.randint(2, (batch_size, 1))
    targets = torch.cat([words.masked_fill(~masked, _NOT_ASKED), follows], dim=1)
    inputs = (tokens, sentences.repeat(batch_size, 1))
    return Task(module, inputs, targets, pretraining_loss, masked_accuracy)
