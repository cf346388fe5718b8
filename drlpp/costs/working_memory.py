"""What a stage holds while it computes, beyond what is kept for backwards and its messages.

The backward of an operator holds the gradients of what it makes and of what it reads. The loss
holds two tensors as large as what the model returns: of a language model these are its largest. By
the backward of operator i, what the later operators of the stage had kept is free again, so with
working bytes w and kept bytes k a stage needs

    max over its operators i of  w_i − (sum of k_j over its later operators j)

more than all that it keeps, if that is above 0. Gradients that cross the border of a stage count
among its messages as well, so a stage may take less. What libraries allocate by themselves is left
out, such as copies that convolutions make, and what an optimizer's step does. Torch allocates this
on a CPU to a percent (its test, whose convolutions are small); on a GPU, predictions are 0.8 to 1.3
times the peaks, most within a tenth (docs/devices.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

from drlpp.costs.profile import Profile
from drlpp.costs.stage_work import Array
from drlpp.costs.tensors import transfers_of

_TENSORS_OF_LOSS = 2
"""As large as what the model returns: of a softmax its gradient, and the gradient behind it."""


def working_bytes_of(profile: Profile) -> Array:
    """Return w of every operator, and then of the loss: shape ``(operators + 1,)``.

    What takes no time and keeps nothing is a view of what it reads, and has no memory of its own.
    """
    operators = len(profile.graph)
    found = numpy.zeros(operators + 1)
    for transfer in transfers_of(profile.graph):
        found[list(transfer.members)] += transfer.backward_bytes
    found[operators] *= _TENSORS_OF_LOSS
    for number, cost in enumerate(profile.operators):
        seconds = cost.forward_seconds + cost.backward_seconds
        if cost.working_bytes is not None:
            found[number] = cost.working_bytes
        elif not (seconds or cost.kept_bytes or profile.graph.operators[number].parameter_bytes):
            found[number] = 0.0
    return found


def beyond_kept(
    working: Array, kept: Array, inside: NDArray[numpy.bool_], last: NDArray[numpy.bool_]
) -> Array:
    """Return what each stage needs beyond what it keeps: shape ``(stages,)``.

    Args:
        working: w of every operator and of the loss.
        kept: k of every operator, in a topological order.
        inside: which operators a stage has, of shape ``(stages, operators)``.
        last: which stages have the loss.
    """
    so_far = numpy.cumsum(inside * kept, axis=1)
    later = so_far[:, -1:] - so_far
    found: Array = numpy.where(inside, working[:-1] - later, 0.0).max(axis=1, initial=0.0)
    return numpy.where(last, numpy.maximum(found, working[-1]), found)


def joined(working: Array, kept: Array, groups: Sequence[Sequence[int]]) -> Array:
    """Return w of groups of operators that become one each, and of the loss."""
    found = []
    for group in groups:
        later = numpy.cumsum(kept[list(group)][::-1])[::-1] - kept[list(group)]
        found.append(float((working[list(group)] - later).max()))
    return numpy.array([*found, working[-1]])
