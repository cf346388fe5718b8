"""Weights that several stages hold copies of: all copies make the same updates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn


class TiedWeights:
    """The copies of this rank; all ranks make one, in the same order.

    Args:
        stage: the module of this rank.
        ties: for every set of stages the names of the weights that they share.

    Attributes:
        counted_elsewhere: names of those that an earlier stage has too, whose gradients count there
            where the norm of all is taken.
    """

    def __init__(self, stage: nn.Module, ties: Sequence[tuple[list[int], list[str]]]) -> None:
        rank, weights = dist.get_rank(), dict(stage.named_parameters())
        self.counted_elsewhere: set[str] = set()
        self._shared: list[tuple[dist.ProcessGroup, nn.Parameter]] = []
        for ranks, names in ties:
            # Every rank takes part in making a group, also of others.
            group = dist.new_group(ranks)
            if rank in ranks:
                self._shared += [(group, weights[name]) for name in names]
                if rank != min(ranks):
                    self.counted_elsewhere |= {*names}

    def sum_gradients(self) -> None:
        """Give every copy the sum of the gradients of all copies."""
        for group, weight in self._shared:
            found = weight.grad
            # One that no stage has a gradient of is left alone.
            known = torch.tensor(float(found is not None), device=weight.device)
            total: Tensor = torch.zeros_like(weight) if found is None else found
            dist.all_reduce(known, group=group)
            dist.all_reduce(total, group=group)
            weight.grad = total if known else None
