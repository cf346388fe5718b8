"""The loop over epochs, with checkpoints between any two minibatches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from drlpp.errors import DRLPPError, InvalidFile, NotFinite, RunFailure
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.placement import Placement
from drlpp.runtime.deploying.deployment import Deployment
from drlpp.runtime.ipc.protocol import Progress, RunResult
from drlpp.runtime.ipc.tensor_file import read_checkpoint, write_state_dict
from drlpp.runtime.session.measuring import RunMeter
from drlpp.runtime.session.session import ClusterSession
from drlpp.runtime.training.checkpoints import (
    CHECKPOINT_NAME,
    CheckpointFile,
    CheckpointStore,
    TrainingCheckpoint,
    TrainingProgress,
    checked_checkpoint,
    refuse_older,
)
from drlpp.runtime.training.data.training_data import LoaderState, TrainingData, primed
from drlpp.runtime.training.training_log import TrainingLog, training_log
from drlpp.runtime.training.training_plan import (
    EpochReport,
    ProgressReport,
    Stint,
    TrainerCallbacks,
    TrainingPlan,
)
from drlpp.schedule.actions import MicrobatchId
from drlpp.specs.optimizer_spec import OptimizerSpec

_OTHER_PLACEMENT = (
    "the checkpoint is of another placement or method: its weights are gone on with, and "
    "minibatches that were in flight are sent again"
)


class Trainer:
    """Trains on a session's workers, and keeps ``checkpoint.pt`` in ``folder``, or parts.

    A checkpoint of the same placement and method continues bit for bit as if nothing had happened,
    with the minibatches that were in flight. Under another placement or method, or where a stage
    has been cut differently, training continues from the weights and the optimizer's state: the
    minibatches that were in flight are sent through the pipeline again. For methods that flush
    there are none, and that is exact as well.

    The checkpoint of an epoch is written before the epoch is evaluated, so that no failure there
    loses it; whoever resumes from it evaluates the epoch again.

    With early stopping, ``best.pt`` holds the weights of the best epoch so far.
    """

    def __init__(
        self,
        session: ClusterSession,
        data: TrainingData,
        folder: Path,
        plan: TrainingPlan,
        observer: TrainerCallbacks,
        optimizer: OptimizerSpec | None = None,
        store: CheckpointStore | None = None,
    ) -> None:
        """Begin where the checkpoint in ``folder``, or another ``store``, ends, if there is one.

        Attributes:
            on_checkpoint: is called after every checkpoint but the last, and may raise to train
                anew from there.
            saved: the epochs, and the minibatches of the next, that the last checkpoint has.
            meter: measures what is trained until the next checkpoint, or the end of the epoch.
            deploying_seconds: that it took last to go on from a checkpoint.
        """
        self.on_checkpoint: Callable[[], None] | None = None
        self.session = session
        self.optimizer = optimizer or session.optimizer
        self.data = data
        self.plan = plan
        self.observer = observer
        self.folder = folder
        refuse_older(folder)
        self.store = store or CheckpointFile(folder / CHECKPOINT_NAME)
        self.best = folder / "best.pt"
        self._count = data.minibatches
        self._progress = TrainingProgress()
        self._evaluated: EpochReport | None = None
        self.saved = 0, 0
        self.meter: RunMeter | None = None
        self.deploying_seconds = 0.0
        self._first_samples = data.state()
        self._rates = plan.rates(self.optimizer, self._count)
        data.lend_to(session)

    @property
    def reports(self) -> tuple[EpochReport, ...]:
        """The reports of all epochs so far."""
        return self._progress.epochs

    def train(self, placement: Placement | Candidate | ExecutionPlan) -> dict[str, Tensor]:
        """Train up to the last epoch and return the state_dict, of the best if stopping early."""
        deployment, goes_on = self._deploy(placement)
        if note := self.plan.check_not_beyond(len(self.reports), self._progress.position):
            self.observer.on_note(note)
        self._until(self.plan.epochs * self._count, deployment, goes_on=goes_on)
        if self.plan.early_stopping:
            return self._read_best()
        return self.session.collect(deployment)[0]

    def train_until(
        self, placement: Placement | Candidate | ExecutionPlan, minibatches: int
    ) -> Stint:
        """Train until so many minibatches are done in all, keep a checkpoint there, and evaluate.

        Within an epoch the pipeline is not emptied: the checkpoint has what is in flight, with
        which the next call continues. All stages have to have made whole updates there.
        """
        deployment, goes_on = self._deploy(placement)
        first = self._done
        seconds = self._until(minibatches, deployment, goes_on=goes_on)
        if self.reports and not self._progress.position:
            evaluation = self.reports[-1].held_out_loss, self.reports[-1].score
        else:
            evaluation = self._evaluate(deployment)
        return Stint(first, self._done, seconds, *evaluation)

    @property
    def left(self) -> int:
        """The minibatches up to the last epoch."""
        return self.plan.epochs * self._count - self._done

    @property
    def _done(self) -> int:
        """The minibatches that are done in all."""
        return len(self.reports) * self._count + self._progress.position

    def _until(self, minibatches: int, deployment: Deployment, *, goes_on: bool) -> float:
        """Train until so many minibatches are done, or early stopping ends it.

        Every whole epoch is evaluated behind its checkpoint.

        Returns:
            The seconds of training alone.
        """
        stopping, seconds = self.plan.early_stopping, 0.0
        with training_log(self.folder, first=self._done) as log:
            if not self._progress.evaluated:
                self._end_epoch(deployment, log)
            while self._done < minibatches and not (stopping and stopping.is_over(self.reports)):
                left = minibatches - len(self.reports) * self._count
                stop = left if left < self._count else None
                with self._telling_why_and_the_way_on():
                    seconds += self._epoch(deployment, log, goes_on=goes_on, stop=stop)
                    if stop is None:
                        self._save(deployment)
                if stop is None:
                    self._end_epoch(deployment, log)
                    if left > self._count and self.on_checkpoint:
                        self.on_checkpoint()
                goes_on = False
        return seconds

    def _deploy(self, placement: Placement | Candidate | ExecutionPlan) -> tuple[Deployment, bool]:
        """Deploy the checkpoint, if any; true if the pipeline continues what it has in flight."""
        plan = self.session.plan(placement)
        saved, file = self._restore()
        same = saved is not None and _identity(plan) == saved.deployed
        # Starting workers is no part of the time that deploying takes again and again.
        self.session.prepare()
        deployment = self.session.deploy(
            plan, optimizer=self.optimizer, checkpoint=file, in_flight=same
        )
        self.deploying_seconds = deployment.seconds
        if saved is not None and not same and not self.on_checkpoint:
            self.observer.on_note(_OTHER_PLACEMENT)
        return deployment, same and self._progress.position > 0

    def _end_epoch(self, deployment: Deployment, log: TrainingLog) -> None:
        """Evaluate the epoch that the checkpoint has, and keep its weights if they are the best."""
        *before, report = self.reports
        if not self._progress.evaluated:
            try:
                held_out_loss, score = self._evaluate(deployment)
            except DRLPPError as error:
                raise type(error)(
                    f"evaluating epoch {report.epoch}, which is saved, and is evaluated again when "
                    f"this run is resumed: {error}"
                ) from error
            report = replace(report, held_out_loss=held_out_loss, score=score)
            self._progress = TrainingProgress(epochs=(*before, report))
            stopping = self.plan.early_stopping
            if stopping and stopping.best(self.reports) == report:
                write_state_dict(self.best, self.session.collect(deployment)[0])
            # Not before: whoever has lost a worker here evaluates again, and writes the weights.
            self._evaluated = report
        log.epoch(report, self.data.batch_size)
        self.observer.on_epoch(report)

    def _restore(self) -> tuple[TrainingCheckpoint | None, Path | None]:
        """Return the last checkpoint, if any, and a file of it for the workers."""
        if not self.store.exists():
            self._progress, self.saved = TrainingProgress(), (0, 0)
            self.data.load_state(self._first_samples)
            return None, None
        found, file = self.store.read(self.session)
        saved = checked_checkpoint(self.store, found, self.session.captured.state)
        self.saved = len(saved.epochs), saved.position
        self._progress = saved.progress
        if (known := self._evaluated) and not saved.evaluated:
            as_trained = replace(known, held_out_loss=None, score=None)
            if as_trained == saved.epochs[-1]:
                self._progress = TrainingProgress(epochs=(*saved.epochs[:-1], known))
        self.data.load_state(LoaderState(*saved.data))
        if self.plan.early_stopping and len(saved.epochs) > (not self._progress.evaluated):
            # That it can be read is found out before training continues.
            self._read_best()
        return saved, file

    def _read_best(self) -> dict[str, Tensor]:
        """Read the weights of the best epoch so far."""
        try:
            found: dict[str, Tensor] = read_checkpoint(self.best)
        except InvalidFile as error:
            raise InvalidFile(
                f"the weights of the best epoch so far cannot be read: {error}; put the file back, "
                "or train in another folder"
            ) from None
        return found

    @contextmanager
    def _telling_why_and_the_way_on(self) -> Iterator[None]:
        try:
            yield
        except NotFinite as error:
            last = self._done - 1 if error.minibatch is None else error.minibatch
            text = (
                f"training diverged in epoch {max(last, 0) // self._count + 1}: {error}; if all "
                "values of the data are finite, a lower learning rate, a warm_up, clip_norm, "
                "synchronous epochs or float32 may help"
            )
            if self.store.exists():
                text += (
                    f"; {self.store} has finite weights; a resumed run starts from them, with "
                    "another clip_norm or precision if you like, but with the same rates and epochs"
                )
            raise NotFinite(text, error.minibatch) from None
        except RunFailure as error:
            raise type(error)(f"{error}; {self._kept()}") from error

    def _kept(self) -> str:
        """Say what is kept of a training that has failed, and how it continues."""
        if not self.store.exists():
            return (
                "nothing had been saved yet, so the same command begins anew (--checkpoint-every, "
                "checkpoint_every save within an epoch)"
            )
        epochs, position = self.saved
        parts = [f"epoch {epochs}"] if epochs else []
        parts += [f"{position} minibatches of epoch {epochs + 1}"] if position else []
        return (
            f"{self.store} has all up to {' and '.join(parts)}, and the same command with "
            "--resume (in Python resume=True) continues there"
        )

    def _save(self, deployment: Deployment) -> None:
        facts = {"deployed": _identity(deployment.plan), "data": self.data.state()}
        self.store.save(self.session, deployment, {**self._progress.model_dump(), **facts})
        self.saved = len(self.reports), self._progress.position

    def _epoch(
        self, deployment: Deployment, log: TrainingLog, *, goes_on: bool, stop: int | None
    ) -> float:
        """Do the minibatches of the next epoch that are not done yet; those before ``stop``.

        Returns:
            The seconds of training, without those of checkpoints on the way.
        """
        epoch = len(self.reports) + 1
        done, before = self._progress.position, self._progress.losses
        # A pipeline that continues does what it would have done; another one begins where it ended.
        began = self._progress.began if goes_on else done
        first = (epoch - 1) * self._count + began
        options = replace(
            self.data.training(epoch, began, done),
            rates=self._rates[first:] if self._rates is not None else None,
            first_minibatch=first,
            asynchronous_before=max(0, first - self.plan.synchronous_epochs * self._count),
            synchronous=epoch <= self.plan.synchronous_epochs,
            finite=True,
        )
        if done and options.loaded is not None:
            # A loader begins the epoch anew to get there, which is no training.
            options = replace(options, loaded=primed(options.loaded))
        left = self._count - began
        checkpoints = self.plan.cuts(deployment.plan, left) if stop is None else [stop - began]
        begin, saving = time.perf_counter(), 0.0
        meter = self.meter = RunMeter(deployment.plan.pipeline, done - began)

        def save(cut: int, results: Mapping[int, RunResult]) -> bool:
            nonlocal saving
            paused = time.perf_counter()
            losses = before | _numbered(began, (r.losses for r in results.values()))
            self._log(log, epoch, losses)
            self._progress = TrainingProgress(
                epochs=self.reports, began=began, position=began + cut, losses=losses
            )
            self._save(deployment)
            if began + cut != stop and self.on_checkpoint:
                # An epoch that flushes is not what was planned.
                if not options.synchronous:
                    meter.measure(cut, results)
                self.on_checkpoint()
            saving += time.perf_counter() - paused
            return began + cut == stop

        live: dict[MicrobatchId, float] = {}

        def tell(progress: Progress) -> None:
            through = began + progress.through
            live.update(_numbered(began, [progress.losses]))
            passed = {part: live.pop(part) for part in list(live) if part[0] < through}
            self._log(log, epoch, passed)
            speed = (through - done) / (time.perf_counter() - begin)
            self.observer.on_progress(
                ProgressReport(epoch, through, self._count, progress.loss, speed)
            )

        schedule, results = self.session.run(
            deployment,
            left,
            options,
            on_progress=tell,
            cuts=checkpoints,
            start=done - began if goes_on else None,
            on_cut=save,
        )
        seconds = time.perf_counter() - begin
        if stop is not None:
            return seconds - saving
        if self.on_checkpoint and not options.synchronous:
            meter.measure(left, results)
        of_parts = before | _numbered(began, (r.losses for r in results.values()))
        self._log(log, epoch, of_parts)
        losses = list(_mean_losses(of_parts).values())
        log.workers(epoch, schedule, results)
        # Asynchronous stages skip updates each on their own; the largest number is reported.
        if skipped := max(result.skipped_updates for result in results.values()):
            scale = deployment.plan.method.applied_loss_scale
            self.observer.on_note(
                f"in epoch {epoch} gradients overflowed in float16, and a stage skipped {skipped} "
                f"of its updates; a loss_scale below {scale:g} may help"
            )
        report = EpochReport(
            epoch=epoch,
            loss=sum(losses) / len(losses),
            held_out_loss=None,
            score=None,
            minibatches_per_second=(self._count - done) / seconds,
        )
        self._progress = TrainingProgress(
            epochs=(*self.reports, report), evaluated=not self.data.held_out_count.samples
        )
        return seconds - saving

    def _log(self, log: TrainingLog, epoch: int, losses: Mapping[MicrobatchId, float]) -> None:
        """Write about minibatches of an epoch."""
        first = (epoch - 1) * self._count
        means = {first + minibatch: loss for minibatch, loss in _mean_losses(losses).items()}
        unchanged = self.optimizer.rate
        log.minibatches(
            means, {step: self._rates[step] if self._rates else unchanged for step in means}
        )

    def _evaluate(self, deployment: Deployment) -> tuple[float | None, float | None]:
        """Return loss and score on held-out data, None where there are none."""
        count = self.data.held_out_count
        if not count.samples:
            return None, None
        found = self.session.evaluate(deployment, count.minibatches, self.data.evaluation())
        score = None if found.scores is None else count.mean_score(found.scores)
        return count.mean_loss(found.losses), score


def _identity(plan: ExecutionPlan) -> str:
    """Return what two checkpoints have in common whose parts in flight suit each other."""
    return f"{plan.placement.model_dump_json()} {plan.method.model_dump_json()}"


def _numbered(
    began: int, found: Iterable[Mapping[MicrobatchId, float]]
) -> dict[MicrobatchId, float]:
    """Return losses of a run that began with minibatch number ``began`` of its epoch."""
    return {
        (minibatch + began, microbatch): loss
        for losses in found
        for (minibatch, microbatch), loss in losses.items()
    }


def _mean_losses(losses: Mapping[MicrobatchId, float]) -> dict[int, float]:
    """Return every minibatch's mean over its parts; their number may change on resuming."""
    parts: dict[int, list[float]] = {}
    for (minibatch, _), loss in losses.items():
        parts.setdefault(minibatch, []).append(loss)
    return {minibatch: sum(of_one) / len(of_one) for minibatch, of_one in sorted(parts.items())}
