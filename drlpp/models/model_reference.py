"""Where a model comes from: the zoo, an import path, or an object of this program."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar, Self

import torch
from pydantic import Field, PrivateAttr
from torch import nn

from drlpp.errors import InvalidModel, did_you_mean
from drlpp.io.importing import ImportedByName
from drlpp.models.huggingface import huggingface
from drlpp.models.task import Option, Task, checked_task, uncompiled
from drlpp.models.zoo import SMALL, ZOO
from drlpp.models.zoo.images import torchvision

_LIBRARIES: dict[str, Callable[..., Task]] = {
    "huggingface": huggingface,
    "torchvision": torchvision,
}
"""Factories of models that these have."""


class _Held:
    """An object of this program: copies of a reference share it, and none leaves the process."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def __deepcopy__(self, _memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[type[_Held], tuple[()]]:
        return _Held, ()


class ModelReference(ImportedByName):
    """Where a model comes from: a name in the zoo or ``package.module:factory``, and its options.

    The name ``huggingface`` stands for a local folder of transformers, its option ``folder``, and
    ``torchvision`` for a classifier of that library, its option ``name``. A factory is called with
    the options as keyword arguments and returns a :class:`Task`, or any tuple with the same first
    elements, such as ``(module, inputs)``. Of a task or a factory that no import path leads to, a
    file and every other process have the name alone, such as ``<Decoder>``.
    """

    what: ClassVar[str] = "model"
    _option: ClassVar[str] = "--model"
    _in_python: ClassVar[str] = "model={0!r}"

    options: dict[str, Option] = Field(default_factory=dict)
    _held: _Held = PrivateAttr(default_factory=_Held)

    @classmethod
    def of(cls, model: Model) -> ModelReference:
        """Return a reference to a model in any form that a user has it in.

        Args:
            model: a reference, a name, a :class:`Task`, or a factory: a function, a class or a
                ``functools.partial``. A factory that can be imported is named by its import path,
                so that it can be built again from a file.

        Raises:
            InvalidModel: it is none of these.
        """
        if isinstance(model, ModelReference):
            return model
        if isinstance(model, str):
            return cls.named(model)
        if isinstance(model, tuple) and model and isinstance(model[0], nn.Module):
            name = uncompiled(model[0])._get_name()
        elif callable(model) and not isinstance(model, nn.Module):
            if (path := _importable(model)) is not None:
                return cls.named(path[0], "published", **path[1])
            plain = model.func if isinstance(model, functools.partial) else model
            name = getattr(plain, "__name__", type(plain).__name__).strip("<>")
        else:
            way_out = (
                "drlpp.from_huggingface(model, batch)"
                if hasattr(model, "save_pretrained")
                else "drlpp.Task(module, inputs, targets, loss)"
            )
            raise InvalidModel(
                f"model is a {type(model).__name__}, which does not say what it is called with; "
                f"give {way_out} with an example of one minibatch, a factory that returns such a "
                "task, or a name"
            )
        reference = cls(name=f"<{name}>")
        reference._held = _Held(model)
        return reference

    @classmethod
    def named(cls, name: str, size: str = "small", /, **options: Option) -> ModelReference:
        """Return a model as a user names it.

        Args:
            name: in the zoo, or ``package.module:factory``.
            size: of a model of the zoo: ``small`` trains well on CPU workers, ``published`` is
                the paper's.
            options: arguments of the factory, which go before those of the size.
        """
        preset = SMALL.get(name, {}) if size == "small" else {}
        return cls(name=name, options={**preset, **options}).as_named_by_user()

    @classmethod
    def recorded(cls, text: str) -> ModelReference:
        """Return the model that a graph has the text of, as far as a name can be read from it.

        What no name of a model is, such as that of a table of costs, becomes ``<text>``.
        """
        name, _, rest = text.partition("(")
        parts = [part.partition("=") for part in rest.removesuffix(")").split(", ") if part]
        with suppress(ValueError):
            found = cls(name=name, options={key: _option(value) for key, _, value in parts})
            if str(found) == text and (":" in name or name in ZOO or name in _LIBRARIES):
                return found
        return cls(name=text if text.startswith("<") else f"<{text}>")

    @property
    def naming_option(self) -> str:
        """The option for a command that reads a file about it; empty for drlpp's own models."""
        if self.name.startswith("<"):
            return f" {self._option} package.module:factory"
        return super().naming_option

    def __str__(self) -> str:
        options = ", ".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.name}({options})" if options else self.name

    def build(self, seed: int = 0) -> Task:
        """Call the factory; the same ``seed`` gives the same weights.

        A task that was given is returned as it is, with its module's own weights.

        Raises:
            InvalidModel: if there is no such factory, it may not be imported, it raises, or it
                returns something else.
        """
        if isinstance(self._held.value, tuple):
            return checked_task(self._held.value, f"model {self}")
        factory = self._factory()
        with torch.random.fork_rng(devices=[]):
            try:
                torch.manual_seed(seed)
                result = factory(**self.options)
            except InvalidModel:
                raise
            except (Exception, SystemExit) as error:
                raise InvalidModel(
                    f"model {self}: its factory raised {type(error).__name__}: {error}"
                ) from error
        return checked_task(result, f"model {self}")

    def _factory(self) -> Callable[..., Any]:
        if self._held.value is not None:
            given: Callable[..., Any] = self._held.value
            return given
        if self.name.startswith("<"):
            raise InvalidModel(
                f"model {self.name} has a name that builds nothing: it was an object of a program, "
                "or is a table's; name a factory of the same model: --model "
                "package.module:factory, in Python model=…"
            )
        if ":" in self.name or self.name.endswith(".py"):
            return self.imported(InvalidModel)
        if self.name in _LIBRARIES:
            return _LIBRARIES[self.name]
        if self.name not in ZOO:
            hint = did_you_mean(self.name, ZOO) or f"it has {', '.join(ZOO)}."
            raise InvalidModel(
                f"model {self.name!r} is not in the zoo; {hint} A model of transformers is "
                "'huggingface' with the option folder, one of torchvision 'torchvision' with the "
                "option name, one of your own 'package.module:factory'"
            )
        return ZOO[self.name]


def _option(text: str) -> Any:
    """Return an option's value as its text in :class:`ModelReference` says it."""
    with suppress(ValueError, SyntaxError):
        return ast.literal_eval(text)
    return text


Model = ModelReference | Task | Callable[..., Any] | str
"""A model as a user has it."""


def _importable(factory: Callable[..., Any]) -> tuple[str, dict[str, Option]] | None:
    """Return the name and the options by which another process can build what this builds."""
    options: dict[str, Any] = {}
    if isinstance(factory, functools.partial):
        if factory.args or not all(isinstance(v, Option) for v in factory.keywords.values()):
            return None
        options = factory.keywords
        factory = factory.func
    module, name = getattr(factory, "__module__", None), getattr(factory, "__qualname__", "")
    if ZOO.get(name) is factory:
        return name, options
    if module == "__main__" or getattr(sys.modules.get(str(module)), name, None) is not factory:
        return None
    return f"{module}:{name}", options
