"""The vision transformer ViT-B/16 (Dosovitskiy et al. 2020, arXiv:2010.11929)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.errors import InvalidInput
from drlpp.models.task import Task
from drlpp.models.zoo.attention import MultiHeadAttention
from drlpp.models.zoo.classification import classification_task

_EPSILON = 1e-6


class ViTBlock(nn.Module):
    """Attention and a feed-forward network, each normalised before and with a shortcut.

    Shapes: ``(batch, patches + 1, hidden)`` to the same.
    """

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden, _EPSILON)
        self.attention = MultiHeadAttention(hidden, heads, dropout=0.0)
        self.norm = nn.LayerNorm(hidden, _EPSILON)
        self.inner = nn.Linear(hidden, 4 * hidden)
        self.output = nn.Linear(4 * hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Apply both."""
        normed = self.attention_norm(x)
        x = x + self.dropout(self.attention(normed, normed))
        inner = self.dropout(F.gelu(self.inner(self.norm(x))))
        return x + self.dropout(self.output(inner))


class ViT(nn.Module):
    """Patches of an image and a class token, blocks, and a classifier of that token.

    Shapes: ``(batch, 3, input size, input size)`` to ``(batch, classes)``.

    Raises:
        InvalidInput: if an image cannot be cut into patches.
    """

    def __init__(
        self,
        input_size: int = 224,
        patch: int = 16,
        classes: int = 1000,
        hidden: int = 768,
        layers: int = 12,
        heads: int = 12,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if patch < 1 or input_size % patch:
            raise InvalidInput(
                f"vit: images of {input_size} pixels cannot be cut into patches of {patch}; "
                "choose an input_size that the patch divides"
            )
        self.patches = nn.Conv2d(3, hidden, kernel_size=patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, hidden))
        self.positions = nn.Parameter(torch.empty(1, 1 + (input_size // patch) ** 2, hidden))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(ViTBlock(hidden, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden, _EPSILON)
        self.head = nn.Linear(hidden, classes)
        nn.init.normal_(self.positions, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Give the logits of the classes."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        token = self.class_token.expand(len(images), -1, -1)
        x = self.dropout(torch.cat([token, patches], dim=1) + self.positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def vit(
    batch_size: int = 64,
    input_size: int = 224,
    patch: int = 16,
    classes: int = 1000,
    hidden: int = 768,
    layers: int = 12,
    heads: int = 12,
    dropout: float = 0.0,
) -> Task:
    """Return ViT-B/16 on random images.

    Args:
        batch_size: images in a minibatch.
        input_size: height and width of the images, a multiple of ``patch``.
        patch: height and width of a patch.
        classes: number of classes.
        hidden: units of every layer; the feed-forward networks have four times as many.
        layers: number of blocks.
        heads: of the attention.
        dropout: probability, behind embeddings, attention and feed-forward networks.

    Raises:
        InvalidInput: if an image cannot be cut into patches.
    """
    module = ViT(input_size, patch, classes, hidden, layers, heads, dropout)
    return classification_task(module, batch_size, input_size, classes)
