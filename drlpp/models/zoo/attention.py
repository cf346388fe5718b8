"""Multi-head attention (Vaswani et al. 2017, arXiv:1706.03762), of BERT and the Transformer."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.errors import InvalidInput


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
