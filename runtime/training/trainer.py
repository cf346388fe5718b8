"""The loop over epochs, and over the runs between two checkpoints in an epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path

from torch import Tensor

from drlpp.errors import DRLPPError, InvalidFile, NotFinite, RunFailure
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.placement import Placement
from drlpp.runtime.deploying.deployment import RunOptions
from drlpp.runtime.ipc.protocol import Progress
from drlpp.runtime.ipc.tensor_file import read_checkpoint, write_checkpoint
from drlpp.runtime.loading.loaders import suspended_sigchld_handler
from drlpp.runtime.session.measuring import RunMeter
from drlpp.runtime.session.session import ClusterSession
from drlpp.runtime.training.checkpoints import (
    CHECKPOINT_NAME,
    CheckpointFile,
    CheckpointStore,
    checked_checkpoint,
    refuse_older,
)
from drlpp.runtime.training.training_data import LoaderState, TrainingData
from drlpp.runtime.training.training_log import TrainingLog
from drlpp.runtime.training.training_plan import (
    EpochReport,
    ProgressReport,
    Stint,
    TrainerCallbacks,
    TrainingPlan,
)
from drlpp.schedule.actions import MicrobatchId
from drlpp.specs.optimizer_spec import OptimizerSpec


class Trainer:
    """Trains on a session's workers, and keeps ``checkpoint.pt`` in ``folder``, or parts.

    The pipeline drains before a checkpoint, and fills again behind it: nothing is in flight there,
    and what is trained between two checkpoints is a run of its own. So a checkpoint continues
    under any placement and method, and with the same ones and interval between checkpoints
    bit for bit as if nothing had happened.

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
            reports: of all epochs so far.
            saved: the epochs, and the minibatches of the next, that the last checkpoint has.
            meter: measures what is trained until the next checkpoint, or the end of the epoch.
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
        self.reports: tuple[EpochReport, ...] = ()
        self._count = data.minibatches
        # Those of the next epoch that are done, and the losses of their parts.
        self._position, self._losses = 0, dict[MicrobatchId, float]()
        self._evaluated: EpochReport | None = None
        self.saved = 0, 0
        self.meter: RunMeter | None = None
        self._first_samples = data.state()
        self._rates = plan.rates(self.optimizer, self._count)
        data.lend_to(session)

    def train(self, placement: Placement | Candidate | ExecutionPlan) -> dict[str, Tensor]:
        """Train up to the last epoch and return the state_dict, of the best if stopping early."""
        self._deploy(placement)
        if note := self.plan.check_not_beyond(len(self.reports), self._position):
            self.observer.on_note(note)
        self._until(self.plan.epochs * self._count)
        if self.plan.early_stopping:
            return self._read_best()
        return self.session.collect(self._deployment)[0]

    def train_until(
        self, placement: Placement | Candidate | ExecutionPlan, minibatches: int
    ) -> Stint:
        """Train until so many minibatches are done in all, keep a checkpoint there, and evaluate.

        The pipeline drains there, as at the end of an epoch.
        """
        self._deploy(placement)
        first = self._done
        seconds = self._until(minibatches)
        if self.reports and not self._position:
            evaluation = self.reports[-1].held_out_loss, self.reports[-1].score
        else:
            evaluation = self._evaluate()
        return Stint(first, self._done, seconds, *evaluation)

    @property
    def _done(self) -> int:
        """The minibatches that are done in all."""
        return len(self.reports) * self._count + self._position

    def _until(self, minibatches: int) -> float:
        """Train until so many minibatches are done, or early stopping ends it.

        Every whole epoch is evaluated behind its checkpoint.

        Returns:
            The seconds of training alone.
        """
        stopping, seconds = self.plan.early_stopping, 0.0
        with closing(TrainingLog(self.folder, first=self._done)) as self._log:
            if not self._is_evaluated:
                self._end_epoch()
            while self._done < minibatches and not (stopping and stopping.is_over(self.reports)):
                left = minibatches - len(self.reports) * self._count
                with self._telling_why_and_the_way_on():
                    seconds += self._epoch(min(left, self._count))
                if not self._position:
                    self._end_epoch()
                    if left > self._count and self.on_checkpoint:
                        self.on_checkpoint()
        return seconds

    def _deploy(self, placement: Placement | Candidate | ExecutionPlan) -> None:
        """Deploy the checkpoint, if there is one."""
        plan, file = self.session.plan(placement), self._restore()
        self._deployment = self.session.deploy(plan, optimizer=self.optimizer, checkpoint=file)

    @property
    def _is_evaluated(self) -> bool:
        """Whether the last whole epoch is, or cannot be any more."""
        if self._position or not self.reports or not self.data.held_out_count.samples:
            return True
        return self.reports[-1].held_out_loss is not None

    def _end_epoch(self) -> None:
        """Evaluate the epoch that the checkpoint has, and keep its weights if they are the best."""
        *before, report = self.reports
        try:
            held_out_loss, score = self._evaluate()
        except DRLPPError as error:
            raise type(error)(
                f"evaluating epoch {report.epoch}, which is saved, and is evaluated again when "
                f"this run is resumed: {error}"
            ) from error
        report = replace(report, held_out_loss=held_out_loss, score=score)
        self.reports = (*before, report)
        stopping = self.plan.early_stopping
        if stopping and stopping.best(self.reports) == report:
            write_checkpoint(self.best, self.session.collect(self._deployment)[0], "state_dict")
        # Not before: whoever has lost a worker here evaluates again, and writes the weights.
        self._evaluated = report
        self._log.epoch(report, self.data.batch_size)
        self.observer.on_epoch(report)

    def _restore(self) -> Path | None:
        """Take over the last checkpoint, if any, and return a file of it for the workers."""
        if not self.store.exists():
            self.reports, self._position, self._losses = (), 0, {}
            self.saved, self._evaluated = (0, 0), None
            self.data.load_state(self._first_samples)
            return None
        found, file = self.store.read(self.session)
        saved = checked_checkpoint(self.store, found, self.session.captured.state)
        self.reports, self._position, self._losses = saved.epochs, saved.position, saved.losses
        self.saved = len(saved.epochs), saved.position
        if (known := self._evaluated) and known.epoch == len(saved.epochs):
            self.reports = (*saved.epochs[:-1], known)
        self.data.load_state(LoaderState(*saved.data))
        if self.plan.early_stopping and len(saved.epochs) > (not self._is_evaluated):
            # That it can be read is found out before training continues.
            self._read_best()
        return file

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

    def _save(self) -> None:
        facts = {
            "epochs": [asdict(report) for report in self.reports],
            "position": self._position,
            "losses": self._losses,
            "data": self.data.state(),
        }
        self.store.save(self.session, self._deployment, facts)
        self.saved = len(self.reports), self._position

    def _epoch(self, end: int) -> float:
        """Do the minibatches of the next epoch that are not done yet and come before ``end``.

        There, and on the way where they are due, are checkpoints.

        Returns:
            The seconds of training, without those of checkpoints.
        """
        epoch, first, seconds = len(self.reports) + 1, self._position, 0.0
        plan, planned = self._deployment.plan, epoch > self.plan.synchronous_epochs
        self.meter = RunMeter()
        samples = self.data.training(epoch, first)
        with ExitStack() as loading:
            if samples.loaded:
                loading.enter_context(suspended_sigchld_handler())
                loading.enter_context(closing(samples.loaded))
            for stop in self.plan.stops(plan, first, end):
                seconds += self._run(self.meter, samples, stop, (first, seconds))
                if self.on_checkpoint and planned:
                    self.meter.measure()
                if stop < self._count:
                    self._save()
                if stop < end and self.on_checkpoint:
                    self.on_checkpoint()
        if end == self._count:
            self._report(self.meter, (end - first) / seconds)
            self._save()
        return seconds

    def _run(
        self, meter: RunMeter, samples: RunOptions, stop: int, before: tuple[int, float]
    ) -> float:
        """Do the next minibatches of the epoch, those before ``stop``, until the pipeline is empty.

        ``samples`` are those of the rest of the epoch; a loader's are taken as they come. Progress
        is told with the speed since the epoch began or was resumed: ``before`` has the minibatch
        where it was, and the seconds that those up to now took.

        Returns:
            The seconds that it took.
        """
        epoch, done = len(self.reports) + 1, self._position
        count, first = stop - done, (epoch - 1) * self._count + done
        order, loaded = samples.order, samples.loaded
        options = RunOptions(
            order=None if order is None else order[done - self._count :][:count],
            loaded=None if loaded is None else (one for one in islice(loaded, count)),
            rates=self._rates[first:] if self._rates is not None else None,
            first_minibatch=first,
            asynchronous_before=max(0, first - self.plan.synchronous_epochs * self._count),
            synchronous=epoch <= self.plan.synchronous_epochs,
            finite=True,
        )
        begin = time.perf_counter()
        live: dict[MicrobatchId, float] = {}
        logged: set[int] = set()

        def tell(progress: Progress) -> None:
            through = done + progress.through
            live.update(_numbered(done, progress.losses))
            passed = {part: live.pop(part) for part in list(live) if part[0] < through}
            self._write_losses(passed)
            logged.update(minibatch for minibatch, _ in passed)
            started, seconds = before
            speed = (through - started) / (seconds + time.perf_counter() - begin)
            self.observer.on_progress(
                ProgressReport(epoch, through, self._count, progress.loss, speed)
            )

        ran = self.session.run(self._deployment, count, options, on_progress=tell)
        seconds = time.perf_counter() - begin
        meter.add(*ran)
        losses = dict[MicrobatchId, float]()
        for result in ran[1].values():
            losses |= _numbered(done, result.losses)
        self._write_losses({part: losses[part] for part in losses if part[0] not in logged})
        self._position, self._losses = stop, self._losses | losses
        return seconds

    def _report(self, meter: RunMeter, speed: float) -> None:
        """Note that an epoch is done; it is still to be evaluated."""
        epoch = len(self.reports) + 1
        self._log.workers(epoch, meter.whole)
        # Asynchronous stages skip updates each on their own; the largest number is reported.
        if skipped := max(meter.skipped.values()):
            scale = self._deployment.plan.method.applied_loss_scale
            self.observer.on_note(
                f"in epoch {epoch} gradients overflowed in float16, and a stage skipped {skipped} "
                f"of its updates; a loss_scale below {scale:g} may help"
            )
        losses = list(_mean_losses(self._losses).values())
        report = EpochReport(
            epoch=epoch,
            loss=sum(losses) / len(losses),
            held_out_loss=None,
            score=None,
            minibatches_per_second=speed,
        )
        self.reports, self._position, self._losses = (*self.reports, report), 0, {}

    def _write_losses(self, losses: Mapping[MicrobatchId, float]) -> None:
        """Write about minibatches of the epoch."""
        first = len(self.reports) * self._count
        for minibatch, loss in _mean_losses(losses).items():
            step = first + minibatch
            rate = self._rates[step] if self._rates else self.optimizer.rate
            self._log.minibatch(step, loss, rate)

    def _evaluate(self) -> tuple[float | None, float | None]:
        """Return loss and score on held-out data, None where there are none."""
        count = self.data.held_out_count
        if not count.samples:
            return None, None
        evaluation = self.data.evaluation()
        found = self.session.evaluate(self._deployment, count.minibatches, evaluation)
        score = None if found.scores is None else count.mean_score(found.scores)
        return count.mean_loss(found.losses), score


def _numbered(done: int, losses: Mapping[MicrobatchId, float]) -> dict[MicrobatchId, float]:
    """Return losses of a run before which so many minibatches of the epoch were done."""
    return {(minibatch + done, part): loss for (minibatch, part), loss in losses.items()}


def _mean_losses(losses: Mapping[MicrobatchId, float]) -> dict[int, float]:
    """Return every minibatch's mean over its parts; their number may change on resuming."""
    parts: dict[int, list[float]] = {}
    for (minibatch, _), loss in losses.items():
        parts.setdefault(minibatch, []).append(loss)
    return {minibatch: sum(of_one) / len(of_one) for minibatch, of_one in sorted(parts.items())}
