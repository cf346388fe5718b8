"""The data of a race: for every training anew, in the order of its seed."""

from __future__ import annotations

from collections.abc import Callable

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import InvalidInput
from drlpp.runtime.loading.loaders import Unpacker
from drlpp.runtime.training.data.given_data import check_classes
from drlpp.runtime.training.data.samples_in_memory import SamplesInMemory
from drlpp.runtime.training.data.training_data import LoadedData, TrainingData
from drlpp.specs.data import Data, Loaders, load_data


class RaceData:
    """Gives the data of a name, which ``drlpp train`` takes as well.

    Args:
        captured: the model.
        name: of the data.
        seed: of the run; each training adds its own.
        note: called with a sentence about what is left out.

    Raises:
        InvalidInput: the data do not fit the model, or have no held-out samples; or the model has
            no loss.
    """

    def __init__(
        self,
        captured: CapturedModel,
        name: str,
        seed: int = 0,
        note: Callable[[str], None] = lambda note: None,
    ) -> None:
        if captured.task.loss is None:
            raise InvalidInput(
                f"model {captured.reference} has no loss to train with; let its factory return "
                "(module, inputs, targets, loss)"
            )
        self.name = name
        self._captured, self._task = captured, captured.task
        self._seed = seed
        self._note = note
        self._inputs, targets = self._task.inputs, self._task.targets
        self._targets = targets
        found = load_data(name, self._inputs, targets)
        self._in_memory = found if isinstance(found, Data) else None
        if self._in_memory is not None:
            check_classes(name, self._in_memory, captured)
        self.first = self.ordered(0)
        if not self.first.held_out_samples:
            raise InvalidInput(
                f"data {name!r} have no held-out samples, by which races are decided"
            )
        # Notes of one loader are enough.
        self._note = lambda note: None

    def ordered(self, seed: int) -> TrainingData:
        """Return the data in the order of a seed."""
        if self._in_memory is not None:
            batch_size = self._task.batch_size
            return SamplesInMemory(self.name, self._in_memory, batch_size, self._seed + seed)
        loaders = load_data(self.name, self._inputs, self._targets)
        assert isinstance(loaders, Loaders)
        return LoadedData(
            self.name,
            loaders,
            Unpacker(None, self._captured, self._note),
            minibatches=None,
            seed=self._seed + seed,
            note=self._note,
        )
