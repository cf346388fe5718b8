"""What a training keeps, its check, and where: in one file, or in parts that workers write."""

from __future__ import annotations

import re
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from drlpp.errors import InvalidFile, StorageFailure
from drlpp.io.documents import Document, Record, read_document, write_document
from drlpp.io.files import replacing
from drlpp.io.quantities import Count
from drlpp.runtime.deploying.deployment import Deployment, merge_stages
from drlpp.runtime.ipc.protocol import held_file
from drlpp.runtime.ipc.shared_storage import storage_at
from drlpp.runtime.ipc.tensor_file import read_checkpoint, write_checkpoint, write_tree
from drlpp.runtime.session.session import ClusterSession
from drlpp.runtime.stage.stage_weights import check_finite
from drlpp.runtime.training.training_plan import EpochReport
from drlpp.schedule.actions import MicrobatchId

_INDEX, _FACTS = "checkpoint.json", "training.pt"
_FOLDER = re.compile(r"[0-9]{1,16}-[0-9]{1,16}")
_ATTEMPTS = 2**48
CHECKPOINT_NAME = "checkpoint.pt"


def refuse_older(folder: Path) -> None:
    """Refuse the folder of a training by a version whose checkpoints are not read any more.

    Raises:
        InvalidFile: it is one, and would be begun anew.
    """
    older = folder / "checkpoint.safetensors"
    if older.exists() and not (folder / CHECKPOINT_NAME).exists():
        raise InvalidFile(
            f"{older}: a checkpoint of an earlier drlpp, which is not read any more; continue with "
            "that version, or train in another folder"
        )


class TrainingCheckpoint(Record):
    """A training between two minibatches: how far it is, and what continues it.

    Of earlier versions it may have more, such as minibatches in flight, which are computed again.

    Attributes:
        epochs: reports of the whole epochs.
        position: the minibatches of the next epoch before this number are done.
        losses: of their parts.
        model: weights and buffers by name.
        optimizer: its state by parameter.
        data: states of the loader's generators, and a hash of the epoch's first minibatch.
    """

    # A held-out loss may be infinite or not a number.
    model_config = ConfigDict(allow_inf_nan=True, arbitrary_types_allowed=True, extra="ignore")

    epochs: tuple[EpochReport, ...] = ()
    position: int = Field(default=0, ge=0)
    losses: dict[MicrobatchId, float] = Field(default_factory=dict)
    model: dict[str, Tensor]
    optimizer: dict[str, dict[str, Any]]
    data: tuple[tuple[Tensor, ...], str]


def checked_checkpoint(path: object, saved: Any, state: Mapping[str, Tensor]) -> TrainingCheckpoint:
    """Return what was read as a checkpoint for a training of a model with this state.

    Raises:
        InvalidFile: it is damaged, or not of such a training.
    """
    try:
        found = TrainingCheckpoint.model_validate(saved)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "its content"
        raise InvalidFile(
            f"{path}: not a checkpoint of drlpp train ({where}: {first['msg']})"
        ) from None
    kinds = [{n: (v.shape, v.dtype) for n, v in of.items()} for of in (found.model, state)]
    if kinds[0] != kinds[1]:
        raise InvalidFile(f"{path}: its model has other weights than this one")
    return found


class CheckpointFile:
    """Keeps the last checkpoint of a training in one file, which the controller writes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def exists(self) -> bool:
        """Return whether there is one."""
        return self._path.exists()

    def save(
        self, session: ClusterSession, deployment: Deployment, facts: Mapping[str, Any]
    ) -> None:
        """Replace it, whole or not at all, by what the workers hold and what is known beyond that.

        Raises:
            NotFinite: weights are not finite.
            StorageFailure: it cannot be written; the last one is as it was.
        """
        model, optimizer = session.collect(deployment)
        check_finite(model, session.captured.state)
        write_checkpoint(self._path, {"model": model, "optimizer": optimizer, **facts})

    def read(self, session: ClusterSession) -> tuple[Any, Path]:
        """Return what it has, unchecked, and a file of it for the workers.

        Raises:
            InvalidFile: it is damaged.
        """
        return read_checkpoint(self._path), self._path


class PartsIndex(Document):
    """Says which parts make the checkpoint.

    Attributes:
        number: of the checkpoint in its training.
        attempt: to write it, a random number: workers of a lost host may still write for another.
        leaders: the workers that have stored a part each, one of every stage.
    """

    # Earlier ones name the workers that had minibatches in flight.
    model_config = ConfigDict(extra="ignore")
    kind: ClassVar[str] = "checkpoint-parts"

    number: Count
    attempt: Count
    leaders: tuple[Count, ...]

    @property
    def folder(self) -> str:
        """The folder of the parts."""
        return f"{self.number}-{self.attempt}"


class CheckpointParts:
    """The same in a file of every stage, in a folder that all hosts share, or behind a URL.

    The first worker of each writes it, all at the same time. The index, written last, makes the
    parts the checkpoint, and those of others, whole or not, are removed. ``checkpoint.json`` in the
    run's folder is a copy of the index.

    Raises:
        InvalidInput: it cannot be opened.
    """

    def __init__(self, location: str, folder: Path) -> None:
        self._storage = storage_at(location)
        self._copy = folder / _INDEX
        self._number = 0

    def __str__(self) -> str:
        return self._storage.location

    def exists(self) -> bool:
        """Return whether there is an index."""
        return self._storage.exists(_INDEX)

    def save(
        self, session: ClusterSession, deployment: Deployment, facts: Mapping[str, Any]
    ) -> None:
        """Let workers write their parts, and then the index."""
        index = PartsIndex(
            number=self._number + 1,
            attempt=secrets.randbelow(_ATTEMPTS),
            leaders=deployment.leaders,
        )
        session.write_parts(deployment, self._storage.location, index.folder)
        path = session.folder / _FACTS
        try:
            captured = session.captured
            names = {"names": list(captured.state), "aliases": dict(captured.aliases)}
            write_tree(path, {"training": dict(facts), **names})
            self._storage.put(path, f"{index.folder}/{_FACTS}")
        finally:
            path.unlink(missing_ok=True)
        write_document(self._copy, index)
        self._storage.put(self._copy, _INDEX)
        self._number = index.number
        for other in self._storage.folders():
            if other != index.folder and _FOLDER.fullmatch(other):
                self._storage.remove_folder(other)

    def read(self, session: ClusterSession) -> tuple[Any, Path]:
        """Return what all parts have, unchecked, and a file of it among the session's."""
        index, whole = _read_parts(str(self), session.folder, session.captured.state)
        self._number = index.number
        merged = session.folder / CHECKPOINT_NAME
        merged.unlink(missing_ok=True)
        write_tree(merged, whole)
        return whole, merged


CheckpointStore = CheckpointFile | CheckpointParts
"""Where a training keeps its last checkpoint; its text says where."""


def export_weights(checkpoint: str | Path, path: str | Path) -> int:
    """Write the weights and buffers of a checkpoint as ``model.safetensors``, a ``state_dict``.

    Args:
        checkpoint: the folder of a run, a ``checkpoint.pt``, or the folder or URL that a
            training was given for its ``checkpoints``.
        path: of the new file.

    Returns:
        How many tensors it has.

    Raises:
        InvalidFile: there is no checkpoint, or a damaged one.
        StorageFailure: the file cannot be written; ``path`` is as it was.
    """
    source = Path(checkpoint)
    refuse_older(source)
    if (source / CHECKPOINT_NAME).exists():
        source = source / CHECKPOINT_NAME
    with tempfile.TemporaryDirectory(prefix="drlpp-") as folder:
        if "://" in str(checkpoint) or source.is_dir():
            _, saved = _read_parts(str(checkpoint), Path(folder), {})
        else:
            saved = read_checkpoint(source)
        weights = saved.get("model") if isinstance(saved, dict) else None
        if not isinstance(weights, dict) or not all(
            isinstance(tensor, Tensor) for tensor in weights.values()
        ):
            raise InvalidFile(f"{checkpoint}: not a checkpoint of drlpp train (it has no model)")
        # The format has no tensors that share memory.
        apart = {
            name: tensor.clone(memory_format=torch.contiguous_format)
            for name, tensor in weights.items()
        }
    try:
        with replacing(Path(path)) as temporary:
            save_file(apart, temporary, {"format": "pt"})
    except (OSError, InvalidFile, SafetensorError) as error:
        raise StorageFailure(f"{path}: the weights could not be written ({error})") from None
    return len(apart)


def _read_parts(
    location: str, folder: Path, initial: Mapping[str, Tensor]
) -> tuple[PartsIndex, dict[str, Any]]:
    """Return the index, and what all parts have as :class:`CheckpointFile` keeps it."""
    storage = storage_at(location)
    if not storage.exists(_INDEX):
        raise InvalidFile(f"{location}: holds no checkpoint of drlpp train")
    index = read_document(storage.get(_INDEX, folder), PartsIndex)

    def read(name: str) -> Any:
        path = storage.get(name, folder)
        try:
            return read_checkpoint(path)
        finally:
            if path.parent == folder:
                # It stays mapped.
                path.unlink(missing_ok=True)

    parts = [read(f"{index.folder}/{held_file(worker)}") for worker in index.leaders]
    facts = read(f"{index.folder}/{_FACTS}")
    try:
        model, optimizer = merge_stages(parts, initial, facts["names"], facts["aliases"])
        return index, {"model": model, "optimizer": optimizer, **facts["training"]}
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        raise InvalidFile(f"{location}: a damaged checkpoint ({error!r})") from None
