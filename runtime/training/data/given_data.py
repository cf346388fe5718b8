"""What a user gives to train on, checked, as the data of a training."""

from __future__ import annotations

from collections.abc import Callable

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import InvalidInput
from drlpp.runtime.loading.loaders import Loader, Unpack, Unpacker
from drlpp.runtime.training.data.samples_in_memory import SamplesInMemory
from drlpp.runtime.training.data.training_data import LoadedData, TrainingData
from drlpp.specs.data import Data, Loaders, fitted, load_data


def training_data(
    data: str | Data | Loader,
    held_out: Loader | None,
    unpack: Unpack | None,
    minibatches: int | None,
    *,
    captured: CapturedModel,
    seed: int,
    note: Callable[[str], None],
) -> TrainingData:
    """Return the data of a training, from what :meth:`PipelineTrainer.fit` is given.

    Raises:
        InvalidInput: anything given does not fit.
    """
    name, task = data if isinstance(data, str) else None, captured.task
    if not isinstance(data, str | Data | Loader):
        raise InvalidInput(
            f"data to train on is a {type(data).__name__}; expected a name, "
            "package.module:factory, drlpp.specs.data.Data, or a torch.utils.data.DataLoader, "
            "such as DataLoader(TensorDataset(inputs, targets), batch_size)"
        )
    if not isinstance(held_out, Loader | None):
        raise InvalidInput(
            f"held_out is a {type(held_out).__name__}; expected a torch.utils.data.DataLoader"
        )
    found: Data | Loaders | Loader
    found = load_data(data, task.inputs, task.targets) if isinstance(data, str) else data
    if isinstance(found, Loader):
        found = Loaders(found, held_out)
    elif held_out is not None:
        raise InvalidInput(
            "held_out belongs to a DataLoader; data by name and in memory have held-out "
            "samples of their own"
        )
    if isinstance(found, Data):
        for option, given in (("unpack", unpack), ("minibatches", minibatches)):
            if given is not None:
                raise InvalidInput(
                    f"{option} belongs to loaders; {name or 'data in memory'} has samples in "
                    "memory, which are taken as they are"
                )
        fitting = fitted(name or "in memory", found, task.inputs, task.targets)
        return SamplesInMemory(name, fitting, task.batch_size, seed)
    return LoadedData(
        name or "DataLoader",
        found,
        Unpacker(unpack, captured, note),
        minibatches=minibatches,
        seed=seed,
        note=note,
    )
