"""A small classifier of points and its data, in memory and from loaders."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from drlpp.models.task import Task
from drlpp.runtime.training.training_data import SamplesInMemory
from drlpp.specs.data import Data, Loaders, Samples

NAME = "tests.support.models.classified_points"
BATCH = 8


def classifier() -> Task:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)
    )
    return Task(
        module,
        (torch.randn(BATCH, 6),),
        torch.randint(3, (BATCH,)),
        F.cross_entropy,
        lambda outputs, targets: (outputs.argmax(1) == targets).float(),
    )


def large() -> Task:
    """Return one with 1.6 megabytes of weights, in blocks."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(6)]
    module = nn.Sequential(nn.Linear(6, 256), nn.Sequential(*layers), nn.Linear(256, 3))
    return Task(module, (torch.randn(BATCH, 6),), torch.randint(3, (BATCH,)), F.cross_entropy)


def points(inputs: object = None) -> Data:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(100 + 30, 6, generator=generator)
    y = (x @ torch.randn(6, 3, generator=generator)).argmax(1)
    return Data(Samples((x[:100],), y[:100]), Samples((x[100:],), y[100:]))


def data(seed: int = 0) -> SamplesInMemory:
    return SamplesInMemory(f"{NAME}:points", points(), BATCH, seed)


def loaders(inputs: object = None) -> Loaders:
    train, test = (TensorDataset(*of.inputs, of.targets) for of in points())
    return Loaders(DataLoader(train, BATCH, shuffle=True), DataLoader(test, BATCH))


def without_held_out(inputs: object = None) -> Loaders:
    return loaders()._replace(held_out=None)


def loaders_of_their_own(inputs: object = None) -> Loaders:
    train, test = (TensorDataset(*of.inputs, of.targets) for of in points())
    generator = torch.Generator().manual_seed(3)
    return Loaders(
        DataLoader(train, BATCH, shuffle=True, generator=generator), DataLoader(test, BATCH)
    )


def without_dropout() -> Task:
    task = classifier()
    task.module[2].p = 0.0
    return task
