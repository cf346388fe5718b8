"""The FLOPs of a minibatch, as everybody counts them."""

from __future__ import annotations

import warnings

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from drlpp.capturing.capture import CapturedModel
from drlpp.capturing.module_check import call_purely
from drlpp.specs.batches import tensors_in


def flops_of(captured: CapturedModel) -> int:
    """Return the FLOPs of products, convolutions and attention, forward and backward."""
    module = captured.module
    trained = [weight for weight in module.parameters() if weight.requires_grad]
    counter = FlopCounterMode(display=False)
    with warnings.catch_warnings(), FakeTensorMode(allow_non_fake_inputs=True):
        warnings.simplefilter("ignore")
        # An LSTM of MKLDNN is one operator, whose FLOPs are not counted.
        with torch.backends.mkldnn.flags(enabled=False), counter:
            outputs = pytree.tree_leaves(call_purely(module, captured.task.inputs))
            tensors = [leaf for leaf in outputs if isinstance(leaf, torch.Tensor)]
            loss = captured.loss(*tensors, *tensors_in(captured.task.targets))
            torch.autograd.grad(loss, trained, allow_unused=True)
    return int(counter.get_total_flops())
