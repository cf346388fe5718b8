"""Training in microbatches by plain PyTorch, to hold other programs' pipelines against."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.optim import Optimizer


def train_in_microbatches(
    module: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    optimizer: Optimizer,
    inputs: Sequence[Tensor],
    targets: Tensor,
    parts: int,
) -> dict[str, Tensor]:
    """One step for every minibatch; its gradient is the mean of those of its equal parts.

    Args:
        module: trained in place.
        loss: the mean over a part.
        optimizer: of its parameters.
        inputs: ``(minibatches, samples, …)`` each.
        targets: the same.
        parts: of a minibatch.

    Returns:
        The parameters, by name.
    """
    for *read, wanted in zip(*inputs, targets, strict=True):
        optimizer.zero_grad()
        for *piece, target in zip(*(x.chunk(parts) for x in (*read, wanted)), strict=True):
            (loss(module(*piece), target) / parts).backward()
        optimizer.step()
    return {name: parameter.detach() for name, parameter in module.named_parameters()}
