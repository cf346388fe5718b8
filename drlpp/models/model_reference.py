"""Where a model comes from: the zoo, or an import path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from drlpp.errors import InvalidModel
from drlpp.io.importing import ImportedByName
from drlpp.models.task import Option, Task
from drlpp.models.zoo import SMALL, ZOO
from drlpp.models.zoo.sizes import check_size


class ModelReference(ImportedByName):
    """Where a model comes from: a name in the zoo or ``package.module:factory``, and its options.

    The factory is called with the options as keyword arguments and returns a :class:`Task`, or
    any tuple with the same first elements, such as ``(module, inputs)``.
    """

    what: ClassVar[str] = "model"
    _for_users: ClassVar[str] = "named(name, …)"

    options: dict[str, Option] = Field(default_factory=dict)

    @classmethod
    def named(cls, name: str, size: str = "small", /, **options: Option) -> ModelReference:
        """Return a model as a user names it; by naming it, the user trusts it.

        Args:
            name: in the zoo, or ``package.module:factory``.
            size: of a model of the zoo: ``small`` trains well on CPU workers, ``published`` is
                the paper's.
            options: arguments of the factory, which go before those of the size.
        """
        preset = SMALL.get(name, {}) if size == "small" else {}
        return cls(name=name, options={**preset, **options}).as_named_by_user()

    def __str__(self) -> str:
        options = ", ".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.name}({options})" if options else self.name

    def build(self, seed: int = 0) -> Task:
        """Call the factory; the same ``seed`` gives the same weights.

        Raises:
            InvalidModel: if there is no such factory, it may not be imported, it raises, or it
                returns something else.
        """
        factory = self._factory()
        with torch.random.fork_rng(devices=[]):
            try:
                if ":" not in self.name:
                    check_size(factory, self.options)
                torch.manual_seed(seed)
                result = factory(**self.options)
            except InvalidModel:
                raise
            except (Exception, SystemExit) as error:
                raise InvalidModel(
                    f"model {self}: its factory raised {type(error).__name__}: {error}"
                ) from error
        return _as_task(result, self)

    def _factory(self) -> Callable[..., Any]:
        if ":" in self.name:
            return self.imported(InvalidModel)
        if self.name not in ZOO:
            raise InvalidModel(
                f"model {self.name!r} is not in the zoo; it has {', '.join(ZOO)}. A model of your "
                "own is named 'package.module:factory'"
            )
        return ZOO[self.name]


def _as_task(result: object, reference: ModelReference) -> Task:
    wanted = "expected (module, inputs) or (module, inputs, targets, loss[, score])"
    if not isinstance(result, tuple) or not 2 <= len(result) <= 5:
        found = type(result).__name__
        raise InvalidModel(f"model {reference}: its factory returned {found}; {wanted}")
    task = Task(*result)
    if not isinstance(task.module, nn.Module):
        raise InvalidModel(
            f"model {reference}: the first element is a {type(task.module).__name__}, "
            "expected a torch.nn.Module"
        )
    given: object = task.inputs
    inputs = (given,) if isinstance(given, Tensor) else given
    if not isinstance(inputs, tuple | list):
        raise InvalidModel(
            f"model {reference}: example inputs are {type(given).__name__}, expected tensors"
        )
    if not inputs or not all(
        isinstance(value, Tensor) and value.dim() and len(value) for value in inputs
    ):
        raise InvalidModel(
            f"model {reference}: example inputs must be tensors with the batch as first dimension, "
            "of at least one sample"
        )
    if len({value.shape[0] for value in inputs}) > 1:
        sizes = [value.shape[0] for value in inputs]
        raise InvalidModel(f"model {reference}: example inputs have batch sizes {sizes}, not one")
    targets: object = task.targets
    if targets is not None and not (
        isinstance(targets, Tensor) and targets.dim() and len(targets) == len(inputs[0])
    ):
        shown = str(tuple(targets.shape)) if isinstance(targets, Tensor) else repr(targets)
        raise InvalidModel(
            f"model {reference}: example targets are {shown}, expected a tensor with the batch "
            f"size {len(inputs[0])} as first dimension"
        )
    return task._replace(inputs=tuple(inputs))
