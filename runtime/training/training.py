"""Training a model with a placement: what is given is checked, then a trainer does the work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from torch import Tensor
from torch.utils.data import DataLoader

from drlpp.capturing.capture import CapturedModel, capture, microbatch_size
from drlpp.errors import InvalidInput, InvalidPlacement
from drlpp.io.run_folder import open_run_folder
from drlpp.models.model_reference import Model
from drlpp.placement.placement_file import PlacementFile, read_placement
from drlpp.placement.plan import Plan
from drlpp.runtime.device.emulation import checked_speeds
from drlpp.runtime.ipc.tensor_file import write_checkpoint
from drlpp.runtime.ipc.time_limits import TimeLimits, time_limits_of
from drlpp.runtime.loading.loaders import Unpack
from drlpp.runtime.session.session import ClusterSession
from drlpp.runtime.training.checkpoints import CheckpointParts
from drlpp.runtime.training.elastic_training import Elasticity, ElasticTraining
from drlpp.runtime.training.trainer import Trainer
from drlpp.runtime.training.training_data import TrainingData, training_data
from drlpp.runtime.training.training_plan import (
    EarlyStopping,
    EpochReport,
    TrainerCallbacks,
    TrainingPlan,
)
from drlpp.schedule.analysis.staleness import staleness_text
from drlpp.schedule.method import Method
from drlpp.schedule.schedule import check_length
from drlpp.specs.cluster import Cluster, DeviceChoice
from drlpp.specs.data import Data
from drlpp.specs.learning_rate import LearningRateSchedule
from drlpp.specs.optimizer_spec import OptimizerSpec, settled


@dataclass(frozen=True)
class TrainingResult:
    """What training gives: ``state_dict`` loads into the user's own module."""

    state_dict: dict[str, Tensor] = field(repr=False)
    epochs: tuple[EpochReport, ...]
    folder: Path


class PipelineTrainer:
    """Trains the model of a placement with that placement, on worker processes::

        trainer = PipelineTrainer("placement.json", out="training")
        result = trainer.fit(train_loader, held_out_loader, epochs=5)

    Writes ``checkpoint.pt`` after every epoch and every ``checkpoint_every`` minibatches,
    ``model.pt`` (a state_dict) at the end, and TensorBoard's events
    (:class:`~drlpp.runtime.training.training_log.TrainingLog`) into ``out``. With
    ``early_stopping`` also ``best.pt`` (a state_dict) after every epoch that is better than those
    before; ``model.pt`` then has these weights.

    Args:
        placement: a plan (:func:`drlpp.plan`), a placement file or its path.
        model: the one that the placement is for, as a task, captured, a factory or its import
            path. drlpp's and huggingface's need not be given; a file's word alone imports nothing.
        method: instead of the one that the placement was measured with.
        optimizer: instead of the one that the placement was measured with.
        learning_rate: changes the learning rate over time.
        synchronous_epochs: epochs at the beginning that flush before every update, so that nothing
            is stale while the model is young (W of PipeMare).
        early_stopping: ends training when it does not get better.
        checkpoint_every: minibatches between two checkpoints within an epoch; 0 for none. It is
            rounded up to whole updates of all stages. The pipeline drains before a checkpoint, so
            that the weights of an asynchronous method depend on it.
        checkpoints: a folder that all hosts share, or a URL that fsspec knows, where every stage's
            part of a checkpoint is written, instead of ``checkpoint.pt`` in ``out``.
        elastic: ``Elastic(2, 4)`` continues with two to four workers, as many as there are: see
            :class:`~drlpp.runtime.training.elastic_training.ElasticTraining`. What changes is in
            ``changes.jsonl`` and is a note to ``observer``.
        device: that workers compute on: ``cpu``, ``cuda``, ``xpu``, ``mps``, or ``auto`` for GPUs
            where there are any; a checkpoint can be resumed on any of them.
        speeds, links: of every worker, to emulate accelerators, as :class:`ClusterSession` says.
        cluster: address of a Ray cluster, as :class:`ClusterSession` says; the hosts of the
            placement are found there by their names, addresses or labels, or by their size; with
            ``elastic`` some may be missing at first, and workers beyond the placement's are on
            whatever other hosts there are.
        timeout_seconds: without a word from any worker, after which it counts as hung; None to go
            by what was seen so far, as :class:`ClusterSession` says.
        time_limits: all limits of waiting, of which ``timeout_seconds`` is one.
        out: folder for the results.
        resume: continue from the last checkpoint in ``out``; with the same placement, method and
            ``checkpoint_every`` exactly as if nothing had happened. Where there is none yet,
            training begins, with a note to ``observer``.
        seed: of weights, order of samples, and dropout.
        observer: is called with how training goes.

    Raises:
        InvalidInput: anything given does not fit.
    """

    def __init__(
        self,
        placement: str | Path | PlacementFile | Plan,
        *,
        model: CapturedModel | Model | None = None,
        method: Method | None = None,
        optimizer: OptimizerSpec | None = None,
        learning_rate: LearningRateSchedule | None = None,
        synchronous_epochs: int = 0,
        early_stopping: EarlyStopping | None = None,
        checkpoint_every: int = 0,
        checkpoints: str | Path | None = None,
        elastic: Elasticity | None = None,
        device: str = DeviceChoice.AUTO,
        speeds: Sequence[float] | None = None,
        links: Cluster | None = None,
        cluster: str | None = None,
        timeout_seconds: float | None = None,
        time_limits: TimeLimits | None = None,
        out: str | Path = "training",
        resume: bool = False,
        seed: int = 0,
        observer: TrainerCallbacks | None = None,
    ) -> None:
        for name, value, kind, example in (
            ("method", method, Method, 'drlpp.schedule.method_choice.choose_method("stash")'),
            ("optimizer", optimizer, OptimizerSpec, 'OptimizerSpec.parse("adam", lr=0.001)'),
            (
                "learning_rate",
                learning_rate,
                LearningRateSchedule,
                'LearningRateSchedule.parse("cosineannealing", T_max=10); a rate is an option of '
                "the optimizer",
            ),
            ("early_stopping", early_stopping, EarlyStopping, "EarlyStopping(patience=3)"),
            ("observer", observer, TrainerCallbacks, "TrainerCallbacks(on_epoch=print)"),
        ):
            if value is not None and not isinstance(value, kind):
                raise InvalidInput(f"{name} is {value!r}; expected such as {example}")
        if elastic is not None and not hasattr(elastic, "planner"):
            raise InvalidInput(f"elastic is {elastic!r}; expected such as Elastic(2, 4)")
        _check_count("synchronous_epochs", synchronous_epochs, least=0)
        _check_count("checkpoint_every", checkpoint_every, least=0)
        # torch's generators take 64 bits.
        if not isinstance(seed, int) or not -(2**63) <= seed < 2**64:
            raise InvalidInput(
                f"seed is {seed!r}; a whole number from -2^63 to 2^64 - 1 is expected"
            )
        if isinstance(placement, Plan):
            model = placement.model if model is None else model
            placement = placement.file()
        elif not isinstance(placement, str | Path | PlacementFile):
            raise InvalidInput(
                f"placement is a {type(placement).__name__}; expected a plan "
                "(drlpp.plan(model, workers=4)), a placement file or its path"
            )
        path = None if isinstance(placement, PlacementFile) else Path(placement)
        self.out = Path(out)
        document = placement if isinstance(placement, PlacementFile) else read_placement(placement)
        if model is not None:
            document = document.with_model(
                model.reference if isinstance(model, CapturedModel) else model
            )
        known = document.cluster.accelerators
        self.method, self.optimizer = method or document.method, optimizer or document.optimizer
        self.document = document.model_copy(
            update={"method": self.method, "optimizer": self.optimizer}
        )
        self.optimizer.check()
        speeds = speeds if speeds is None else checked_speeds(speeds, known)
        limits = time_limits_of(time_limits, timeout_seconds)
        self.checkpoints = None if checkpoints is None else str(checkpoints)
        self.resume = resume
        self.seed = seed
        self.observer = observer or TrainerCallbacks()
        captured = model if isinstance(model, CapturedModel) else None
        self.captured = captured or capture(self.document.model, seed=seed)
        settled(self.optimizer, self.captured.trained, self.captured.aliases)
        try:
            self._plan = self.document.plan(self.captured.graph, self.method)
        except InvalidPlacement as error:
            if path is None:
                raise
            raise InvalidPlacement(f"{path}: {error}") from None
        self.placement = self._plan.placement
        if self.captured.task.loss is None:
            raise InvalidInput(
                f"model {self.document.model} has no loss to train with; let its factory return "
                "(module, inputs, targets, loss)"
            )
        microbatch_size(self.captured.task, self.method.microbatches)
        self._how_long = TrainingPlan(
            1, learning_rate, synchronous_epochs, checkpoint_every, early_stopping
        )
        self._elastic = elastic
        if elastic is not None:
            self._planner = elastic.planner(self.document, self.captured.graph, path)
        described, workers = self.document.cluster, elastic.most if elastic else known
        if workers < known:
            described = described.part(range(workers))
        self._session = partial(
            ClusterSession,
            self.captured,
            workers,
            method=self.method,
            device=device,
            speeds=speeds,
            links=links,
            cluster=cluster,
            hosts=described if cluster is not None else None,
            least=elastic.least if elastic and cluster is not None else None,
            time_limits=limits,
            optimizer=self.optimizer,
            seed=seed,
        )

    @property
    def staleness(self) -> str | None:
        """How late gradients will be, in one line; None where training is as plain PyTorch's."""
        size = self.captured.task.batch_size
        return staleness_text(self._plan.pipeline, self.method, size, self.optimizer)

    def fit(
        self,
        data: str | Data | DataLoader,
        held_out: DataLoader | None = None,
        *,
        epochs: int = 5,
        unpack: Unpack | None = None,
        minibatches: int | None = None,
    ) -> TrainingResult:
        """Train the model.

        Args:
            data: a name (``digits``), ``package.module:factory``, samples in memory, or any
                ``DataLoader``. A loader's minibatches have the size that the model was captured
                for; smaller ones are left out.
            held_out: a loader of samples to evaluate on after every epoch, in minibatches of any
                size. Named data and samples in memory have their own.
            epochs: how often all training samples are seen.
            unpack: makes ``(inputs, targets)`` of what a loader gives, where that is neither a
                dictionary with the names of the model's inputs, nor a tuple or list of the inputs
                and, last, the targets (:class:`~drlpp.runtime.loading.loaders.Unpacker`).
            minibatches: of an epoch; needed where the loader's data set or sampler has no length.

        Raises:
            InvalidInput: anything given does not fit.
            RunFailure: the workers or the loader failed; ``out`` holds the last checkpoint.
        """
        _check_count("epochs", epochs, least=1)
        if minibatches is not None:
            _check_count("minibatches", minibatches, least=1)
        plan = replace(self._how_long, epochs=epochs)
        source = training_data(
            data,
            held_out,
            unpack,
            minibatches,
            captured=self.captured,
            seed=self.seed,
            note=self.observer.on_note,
        )
        plan.check(self.document.model, self.captured.score is not None, source)
        if source.held_out_count.samples:
            # What cannot be evaluated is refused before the first epoch, not after it.
            self.captured.evaluation  # noqa: B018
        if plan.synchronous_epochs > epochs:
            self.observer.on_note(
                f"synchronous_epochs is {plan.synchronous_epochs}, but training ends after "
                f"{epochs}: every epoch flushes before every update"
            )
        # Whatever cannot work is reported before the folder is claimed.
        check_length(self._plan.pipeline, source.minibatches, self.method.microbatches)
        plan.rates(self.optimizer, source.minibatches)
        settings, note = self._settings(source, plan), self.observer.on_note
        with open_run_folder(
            self.out, "drlpp train", settings, resume=self.resume, note=note
        ) as folder:
            store = None
            if self.checkpoints is not None:
                store = CheckpointParts(self.checkpoints, folder)
                if store.exists() and not self.resume:
                    raise InvalidInput(
                        f"{store} holds the checkpoint of another run; resume that (--resume, in "
                        "Python resume=True), or give another place for checkpoints"
                    )
            with self._session() as session:
                trainer = Trainer(session, source, folder, plan, self.observer, store=store)
                self.observer.on_begin()
                if self.staleness:
                    self.observer.on_staleness(self.staleness)
                if self._elastic is None:
                    state = trainer.train(self._plan)
                else:
                    state = ElasticTraining(trainer, self._elastic, self._planner).train()
            write_checkpoint(folder / "model.pt", state, "state_dict")
            return TrainingResult(state, trainer.reports, folder)

    def _settings(self, source: TrainingData, plan: TrainingPlan) -> dict[str, object]:
        """Return what decides the result: a checkpoint is refused where any of it differs."""
        return {
            "model": self.document.model.model_dump(),
            "graph_fingerprint": self.document.graph_fingerprint,
            "data": source.name,
            "samples_fingerprint": source.fingerprint,
            "minibatches": source.minibatches,
            "optimizer": self.optimizer.settings,
            "learning_rate": plan.learning_rate.settings if plan.learning_rate else None,
            "synchronous_epochs": plan.synchronous_epochs,
            "early_stopping": plan.early_stopping.model_dump() if plan.early_stopping else None,
            "seed": self.seed,
            "checkpoints": self.checkpoints,
        }


def _check_count(name: str, value: object, *, least: int) -> None:
    if not isinstance(value, int):
        raise InvalidInput(f"{name} is {value!r}; a whole number is expected")
    if value < least:
        raise InvalidInput(f"{name} is {value}; at least {least} is needed")
