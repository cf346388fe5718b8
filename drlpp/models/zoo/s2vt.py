"""S2VT, PipeDream's video captioning model (Venugopalan et al. 2015, arXiv:1505.00487).

Two LSTMs run over all time steps, first those of the frames, then those of the caption. The first
reads frames and then zeros; the second reads the first's output, joined with zeros and then words::

    step          1 … frames      frames + 1 … frames + words
    LSTM 1        frames          zeros
    LSTM 2        zeros           words                        ─▶ logits of the next words
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from drlpp.models.task import Task
from drlpp.models.zoo.language import random_sentences, token_accuracy, token_loss


class S2VT(nn.Module):
    """Linear layer for frames, embedding for words, two LSTMs and a linear layer.

    Shapes: frames' features ``(batch, frames, features)`` and words ``(batch, words)`` to logits
    ``(batch, words, vocabulary)``.
    """

    def __init__(
        self,
        vocabulary: int = 12_594,
        features: int = 4096,
        embedding: int = 500,
        hidden: int = 1000,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.frames = nn.Linear(features, embedding)
        self.words = nn.Embedding(vocabulary, embedding)
        self.dropout = nn.Dropout(dropout)
        self.first = nn.LSTM(embedding, hidden, batch_first=True)
        self.second = nn.LSTM(embedding + hidden, hidden, batch_first=True)
        self.projection = nn.Linear(hidden, vocabulary)

    def forward(self, frames: Tensor, words: Tensor) -> Tensor:
        """Give the logits of the word that follows each word."""
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
    """Return S2VT on random videos and captions.

    Args:
        batch_size: videos in a minibatch.
        frames: of a video; with ``words`` the paper's 80 time steps.
        words: of a caption.
        vocabulary: number of words, as the paper counts in MSVD.
        features: of a frame, those of VGG's second linear layer.
        embedding: size to which frames and words are reduced.
        hidden: units of each LSTM.
        dropout: probability, on frames, words and the last LSTM's output.
    """
    module = S2VT(vocabulary, features, embedding, hidden, dropout)
    videos = torch.randn(batch_size, frames, features)
    captions, following = random_sentences(batch_size, words, vocabulary)
    return Task(module, (videos, captions), following, token_loss, token_accuracy)
