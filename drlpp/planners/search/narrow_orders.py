"""Topological orders in which few bytes are alive at a time: good ones to cut into stages.

Behind every operator of an order, the tensors that were made and are still to be read are what a
cut there sends. So the next operator is the one that leaves the fewest bytes alive, as registers
are saved when instructions are scheduled (Goodman and Hsu 1988), with noise, since the greedy
choice is not always right.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from drlpp.costs.workload import Workload


def narrow_order(
    workload: Workload, groups: Sequence[Sequence[int]], draw: random.Random, noise: float
) -> list[int]:
    """Draw a topological order that takes one group of operators after the other.

    Args:
        workload: of all operators.
        groups: all operators, none of which needs one of a later group: the stages of a placement,
            or all at once.
        draw: of the noise.
        noise: for how many mean tensors more an operator may be taken for the best; 0 for greedy.
    """
    transfers = workload.transfers
    touching = workload.transfers_of_member
    left = [len(transfer.members) for transfer in transfers]
    unit = noise * sum(transfer.bytes_ for transfer in transfers) / max(len(transfers), 1)
    waits_for = [len(found) for found in workload.predecessors]

    def worth(operator: int) -> float:
        """Return the bytes that it ends, less those that it begins, and noise."""
        ended = 0.0
        for number in touching[operator]:
            transfer = transfers[number]
            if left[number] == len(transfer.members):
                ended -= transfer.bytes_
            elif left[number] == 1:
                ended += transfer.bytes_
        # Gumbel's noise: what is exp(1) times as good is taken exp(1) times as often.
        return ended - unit * math.log(draw.expovariate(1.0)) if unit else ended

    order: list[int] = []
    for group in groups:
        inside = set(group)
        ready = [operator for operator in group if waits_for[operator] == 0]
        while ready:
            # Of equals the one that became ready last goes on where the order was.
            chosen = max(range(len(ready)), key=lambda index: (worth(ready[index]), index))
            operator = ready.pop(chosen)
            order.append(operator)
            for number in touching[operator]:
                left[number] -= 1
            for successor in workload.successors[operator]:
                waits_for[successor] -= 1
                if waits_for[successor] == 0 and successor in inside:
                    ready.append(successor)
    return order
