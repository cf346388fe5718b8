"""Models of transformers as tasks: called with tensors, they give a loss and logits.

transformers is imported when it is needed: ``pip install 'drlpp[huggingface]'``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from drlpp.errors import InvalidModel
from drlpp.models.task import Task
from drlpp.specs.batches import Batch, chosen

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_CLASSIFIERS = ("ForSequenceClassification", "ForImageClassification")
_LENGTH = 128
_HEAD = "take the class with a head for what is to be learned, such as AutoModelForCausalLM"


def from_huggingface(
    model: PreTrainedModel | str | Path,
    batch: Mapping[str, Any] | None = None,
    *,
    batch_size: int = 8,
    length: int | None = None,
    score: Callable[[Any, Any], Tensor] | None = None,
) -> Task:
    """Return a model of transformers as a task, with the loss that it computes from ``labels``.

    The task's module is the model with the same parameters under the same names, without caches; a
    mixture of experts computes them in batches (``set_experts_implementation("batched_mm")``). So
    what a training gives goes back into the model, and from there into a folder::

        model.load_state_dict(result.state_dict)
        model.save_pretrained("trained")

    Args:
        model: such as ``AutoModelForCausalLM.from_pretrained(folder)``, which is put into training
            mode; or a local folder with ``config.json`` and, in safetensors, weights. Without
            weights there they are random. Those of a folder are loaded in float32.
        batch: an example of one minibatch, as loaders give it, such as ``next(iter(loader))``:
            tensors by the names of the model's arguments, ``labels`` among them. Its size and its
            lengths are those of the training. By default random numbers of the sizes below.
        batch_size: samples of a minibatch, without ``batch``.
        length: tokens of a sample, without ``batch``; by default 128, or the positions of the
            model's configuration if these are fewer.
        score: ``score(outputs, targets)`` of ``{"loss", "logits"}`` and ``{"labels"}`` gives one
            number for each sample. By default whether a classifier is right; otherwise none.

    Raises:
        InvalidModel: the model cannot be loaded or called this way, with the reason.
    """
    if isinstance(model, str | Path):
        model = _loaded(Path(model))
    elif not hasattr(model, "save_pretrained") or not isinstance(model, nn.Module):
        raise InvalidModel(
            f"model is a {type(model).__name__}; expected a model of transformers, such as "
            "AutoModelForCausalLM.from_config(config), or a folder"
        )
    called: Any = model
    name = type(model).__name__
    accepted = inspect.signature(model.forward).parameters
    inputs = _inputs(
        _random_batch(model, batch_size, length) if batch is None else batch, accepted, name
    )
    if hasattr(model, "set_experts_implementation") and called._can_set_experts_implementation():
        # The others depend on which expert gets how many tokens, or on an extension's operators.
        called.set_experts_implementation("batched_mm")
    module = _CalledWithTensors(model, {"use_cache": False} if "use_cache" in accepted else {})
    labels = inputs["labels"]
    classes = labels.dim() == 1 and not labels.is_floating_point()
    if score is None and name.endswith(_CLASSIFIERS) and classes:
        score = _is_right
    targets = {"labels": labels} if score else None
    task = Task(module.train(), inputs, targets, None, score)
    _call_once(task, name)
    return task


def _inputs(given: Any, accepted: Container[str], name: str) -> dict[str, Tensor]:
    """Return what a model takes of an example batch, checked."""
    if not isinstance(given, Mapping):
        raise InvalidModel(
            f"model {name}: the example batch is a {type(given).__name__}; expected a dictionary "
            "of tensors by the names of the model's arguments"
        )
    if "labels" not in given:
        raise InvalidModel(
            f"model {name}: the example batch has {', '.join(map(repr, given))} and no 'labels', "
            "of which the model makes its loss; rename its column (dataset.rename_column('label', "
            "'labels')), or let DataCollatorForLanguageModeling make them"
        )
    if "labels" not in accepted:
        raise InvalidModel(f"model {name} takes no labels, so it has no loss; {_HEAD}")
    for key, value in given.items():
        if key in accepted and not isinstance(value, Tensor):
            raise InvalidModel(
                f"model {name}: {key!r} of the example batch is a {type(value).__name__}; expected "
                "a tensor, as a data set in torch's format gives (dataset.with_format('torch'))"
            )
    return {key: value for key, value in given.items() if key in accepted}


def huggingface(folder: str = "", batch_size: int = 8, length: int | None = None) -> Task:
    """Return the model of a local folder with random examples: the factory of that name."""
    if not folder:
        raise InvalidModel(
            "model huggingface needs a local folder that save_pretrained has written: "
            "--model-option folder=FOLDER"
        )
    return from_huggingface(folder, batch_size=batch_size, length=length)


class _CalledWithTensors(nn.Module):
    """A model of transformers, called with keywords, that returns its loss and its logits alone.

    Its parts, parameters and buffers are the model's own, under the same names.
    """

    def __init__(self, model: PreTrainedModel, options: Mapping[str, Any]) -> None:
        super().__init__()
        self._modules, self._parameters = model._modules, model._parameters
        self._buffers = model._buffers
        self._non_persistent_buffers_set = model._non_persistent_buffers_set
        # No part of this module: names would begin with another.
        self._called = (model,)
        self.options = dict(options)

    def train(self, mode: bool = True) -> _CalledWithTensors:
        self._called[0].train(mode)
        return super().train(mode)

    def _get_name(self) -> str:
        return type(self._called[0]).__name__

    def forward(self, **inputs: Tensor) -> dict[str, Tensor]:
        found = self._called[0].forward(**inputs, **self.options, return_dict=True)
        return {"loss": found.loss, "logits": found.logits}


def _is_right(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
    """Return 1 for every sample that is classified correctly, else 0."""
    return (outputs["logits"].argmax(-1) == targets["labels"]).float()


def _call_once(task: Task, name: str) -> None:
    """Call a model on two samples: some note in their configuration the kind of labels they got."""
    if not all(value.dim() for value in task.inputs.values()):
        # Said where every task is checked.
        return
    few = chosen(task.inputs, slice(2))
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            found: Batch = task.module.eval()(**few)
    except Exception as error:
        message = str(error).strip().partition("\n")[0]
        shapes = ", ".join(f"{key} {tuple(value.shape)}" for key, value in few.items())
        raise InvalidModel(
            f"model {name} cannot be called with {shapes}, or gives no loss and logits: "
            f"{type(error).__name__}: {message}"
        ) from error
    finally:
        task.module.train()
    if not isinstance(found["loss"], Tensor) or not isinstance(found["logits"], Tensor):
        raise InvalidModel(f"model {name} gives no loss and logits for labels; {_HEAD}")


def _loaded(folder: Path) -> PreTrainedModel:
    """Return the model of a folder, of the class that has written it; nothing is downloaded."""
    try:
        import transformers
    except ImportError:
        raise InvalidModel(
            "a model of transformers needs transformers; install it with: pip install "
            "'drlpp[huggingface]'"
        ) from None
    if not (folder / "config.json").is_file():
        raise InvalidModel(
            f"{folder} has no config.json; expected a folder that save_pretrained has written "
            "(nothing is downloaded: transformers' snapshot_download does that)"
        )
    name = "no class"
    try:
        config = transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        name = (config.architectures or (name,))[0]
        kind: Any = getattr(transformers, name, None)
        weights = [file for file in folder.iterdir() if file.suffix in (".safetensors", ".bin")]
        if kind is not None and weights:
            # A pickle may run code, and is refused here.
            return kind.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, dtype=torch.float32
            )
        if kind is not None:
            return kind(config)
    except Exception as error:
        message = " ".join(str(error).split())
        raise InvalidModel(
            f"{folder} cannot be loaded by transformers: {type(error).__name__}: {message}"
        ) from error
    raise InvalidModel(
        f"{folder}: config.json names {name} as architectures, which transformers does not have; "
        "load the model in Python and give it to drlpp.from_huggingface"
    )


def _random_batch(model: PreTrainedModel, batch_size: int, length: int | None) -> dict[str, Tensor]:
    """Return random inputs and labels, unless only a user knows an example of such a model."""
    config, name = model.config.get_text_config(), type(model).__name__
    classes = torch.randint(model.config.num_labels, (batch_size,))
    if model.main_input_name == "pixel_values":
        size = getattr(model.config, "image_size", 224)
        height, width = size if isinstance(size, list | tuple) else (size, size)
        channels = getattr(model.config, "num_channels", 3)
        return {"pixel_values": torch.randn(batch_size, channels, height, width), "labels": classes}
    if model.main_input_name != "input_ids" or not hasattr(config, "vocab_size"):
        raise InvalidModel(
            f"model {name} takes {model.main_input_name}, of which there is no random example; "
            "give one: drlpp.from_huggingface(model, batch)"
        )
    # XLNet, for instance, says -1.
    most = getattr(config, "max_position_embeddings", None) or _LENGTH
    length = length or (min(_LENGTH, most) if most > 0 else _LENGTH)
    tokens = torch.randint(config.vocab_size, (batch_size, length))
    return {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "labels": classes if name.endswith(_CLASSIFIERS) else tokens.clone(),
    }
