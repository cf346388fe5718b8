"""Does anything leak or slow down when workers train and are redeployed for hours?

    python -m benchmarks.soak --hours 2 --out soak.jsonl

One session of four workers and the small AlexNet. A turn is a training of two epochs with
checkpoints and evaluations, on a straight and on a replicated placement in turns, and then a few
measurements of random placements. Four times in a run a worker is killed while it trains, and the
training continues from its checkpoint. Every minute, between two turns, the memory, open files and
threads of the controller, of the server that forks the workers and of every worker are written
down, with the files of the session and the speed of the trainings since. At the end
come a table of the beginning next to the end, and a verdict. The exit code is 1 if anything grew,
or failed for another reason than a kill, or if a kill was not reported as one.
"""

from __future__ import annotations

import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.machine import this_machine
from benchmarks.processes import ProcessFacts, children_of, facts_of, temporary_files_in
from benchmarks.report import terminal
from benchmarks.soak.report import Sample, TurnSpeed, findings_of, table_of
from drlpp.cli.command_line import build_console, run_program
from drlpp.errors import RunFailure
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession, ProgressReport, TrainerCallbacks
from drlpp.runtime.training.data.samples_in_memory import SamplesInMemory
from drlpp.runtime.training.trainer import Trainer
from drlpp.runtime.training.training_plan import TrainingPlan
from drlpp.specs.data import Data, digits
from drlpp.specs.optimizer_spec import OptimizerSpec

_WORKERS = 4
_KILLS = 4
_REDEPLOYMENTS = 5
_MINIBATCHES = 20
# SGD at its usual rate diverges with stale weights.
_OPTIMIZER = OptimizerSpec(name="adam", options={"lr": 0.001})
_PLAN = TrainingPlan(epochs=2, checkpoint_every=30)
PLACEMENTS = {"1-1-1-1": (0, 1, 2, 3), "2-1-1": (0, 0, 1, 2)}

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


class Soak:
    """A session that is never left alone.

    Args:
        session: of four workers.
        data: to train on.
        folder: for everything that is written meanwhile.
        seed: of random placements and victims.
    """

    def __init__(self, session: ClusterSession, data: Data, folder: Path, seed: int = 0) -> None:
        self.session = session
        self.turns = 0
        self._failures: list[str] = []
        self._kills = 0
        self._data = data
        self._folder = folder
        self._random = random.Random(seed)
        self._speeds: list[TurnSpeed] = []
        self._generation = 0
        self._known: list[int] = []

    def turn(self, *, kill: bool) -> bool:
        """Train, with a worker killed meanwhile or not, then redeploy a few times.

        Returns:
            Whether a worker was killed; it is not if the training ended first.
        """
        name = list(PLACEMENTS)[self.turns % len(PLACEMENTS)]
        kills = self._kills
        with tempfile.TemporaryDirectory(prefix="training-", dir=self._folder) as training:
            if kill:
                # The rest of a training that was killed is no measure of the whole.
                self._train(name, Path(training), TrainerCallbacks(on_progress=self._killer()))
                self._train(name, Path(training))
            else:
                self._train_and_time(name, Path(training))
        # Measurements repeat one minibatch; trainings have left all of their samples.
        task = self.session.captured.task
        assert task.targets is not None
        self.session.use_samples(task.inputs, task.targets)
        redeployed = [self._random_placement() for _ in range(_REDEPLOYMENTS)]
        # The last is always the same, since threads and connections depend on the placement.
        for placement in [*redeployed, self._even_placement(PLACEMENTS["1-1-1-1"])]:
            outcome = self.session.measure(placement, _MINIBATCHES)
            if not isinstance(outcome, Measurement):
                self._failures.append(outcome.reason)
        self.turns += 1
        return self._kills > kills

    def sample(self, hours: float) -> Sample:
        """Return the processes as they are now, and the speed since the last sample."""
        if self.session.process_ids != self._known:
            self._known = self.session.process_ids
            self._generation += 1
        servers = [child for child in children_of(os.getpid()) if child not in self._known]
        speeds, self._speeds = self._speeds, []
        failures, self._failures = self._failures, []
        kills, self._kills = self._kills, 0
        return Sample(
            hours=hours,
            turns=self.turns,
            generation=self._generation,
            controller=facts_of(os.getpid()),
            servers=_sum_of([facts_of(server) for server in servers]),
            workers=[facts_of(worker) for worker in self._known],
            session_files=sum(path.is_file() for path in self._folder.rglob("*")),
            shared_memory_files=len(list(Path("/dev/shm").iterdir())),
            speeds=speeds,
            failures=failures,
            kills=kills,
        )

    def _train(
        self, name: str, folder: Path, observer: TrainerCallbacks | None = None
    ) -> Trainer | None:
        """Train, and return the trainer, or None if it failed."""
        placement = self._even_placement(PLACEMENTS[name])
        batch_size = self.session.captured.task.batch_size
        data = SamplesInMemory("digits", self._data, batch_size, seed=0)
        trainer = Trainer(self.session, data, folder, _PLAN, observer or TrainerCallbacks())
        try:
            trainer.train(placement)
        except RunFailure as failure:
            self._failures.append(str(failure))
            return None
        return trainer

    def _train_and_time(self, name: str, folder: Path) -> None:
        before = self._processor_seconds()
        trainer = self._train(name, folder)
        if trainer is not None:
            count = trainer.data.minibatches * _PLAN.epochs
            self._speeds.append(
                TurnSpeed(
                    placement=name,
                    minibatches_per_second=trainer.reports[-1].minibatches_per_second,
                    processor_seconds_per_minibatch=(self._processor_seconds() - before) / count,
                )
            )

    def _processor_seconds(self) -> float:
        return sum(facts_of(worker).processor_seconds for worker in self.session.process_ids)

    def _killer(self) -> Callable[[ProgressReport], None]:
        """Return what kills a worker at a random moment while training cannot end without it."""
        victim = self._random.choice(self.session.process_ids)
        moment = self._random.uniform(0, 0.8)
        kills = self._kills

        def strike(report: ProgressReport) -> None:
            if self._kills == kills and moment <= report.done / report.minibatches < 1:
                os.kill(victim, signal.SIGKILL)
                self._kills += 1

        return strike

    def _even_placement(self, accelerators: tuple[int, ...]) -> Placement:
        stages, operators = max(accelerators) + 1, len(self.session.graph)
        return Placement.from_assignment(
            [min(stages * i // operators, stages - 1) for i in range(operators)], accelerators
        )

    def _random_placement(self) -> Placement:
        """Return a chain of one to four stages, cut anywhere; the other workers are replicas."""
        operators = len(self.session.graph)
        stages = self._random.randint(1, _WORKERS)
        cuts = sorted(self._random.sample(range(1, operators), stages - 1))
        assignment = [sum(cut <= operator for cut in cuts) for operator in range(operators)]
        extra = [self._random.randrange(stages) for _ in range(_WORKERS - stages)]
        return Placement.from_assignment(assignment, [*range(stages), *extra])


def _sum_of(facts: list[ProcessFacts]) -> ProcessFacts:
    return ProcessFacts(
        memory_bytes=sum(one.memory_bytes for one in facts),
        private_bytes=sum(one.private_bytes for one in facts),
        open_files=sum(one.open_files for one in facts),
        threads=sum(one.threads for one in facts),
        processor_seconds=sum(one.processor_seconds for one in facts),
    )


def soak(hours: float, out: Path, sample_seconds: float = 60) -> list[Sample]:
    """Take turns for ``hours`` and append a sample to ``out`` as often as is said."""
    samples: list[Sample] = []
    with (
        tempfile.TemporaryDirectory(prefix="drlpp-soak-") as folder,
        temporary_files_in(folder),
        ClusterSession(ModelReference.named("alexnet"), _WORKERS, optimizer=_OPTIMIZER) as session,
        out.open("w") as file,
    ):
        file.write(json.dumps({"machine": str(this_machine()), "hours": hours}) + "\n")
        task = session.captured.task
        state = Soak(session, digits(task.inputs), Path(folder))
        begin, next_sample, kills = time.monotonic(), 0.0, 0
        state.turn(kill=False)
        while (passed := time.monotonic() - begin) < hours * 3600 or not samples:
            kill = passed > (kills + 1) / (_KILLS + 1) * hours * 3600
            kills += state.turn(kill=kill)
            if passed >= next_sample:
                next_sample = passed + sample_seconds
                samples.append(state.sample((time.monotonic() - begin) / 3600))
                file.write(json.dumps(asdict(samples[-1])) + "\n")
                file.flush()
    return samples


@app.command()
def main(
    out: Annotated[Path, typer.Option(help="Where samples go, a line each.")],
    hours: Annotated[float, typer.Option(help="How long.")] = 2.0,
) -> None:
    """Train and redeploy for hours, and look for whatever grows."""
    console = build_console()
    samples = soak(hours, out)
    last, kills = samples[-1], sum(sample.kills for sample in samples)
    title = f"{last.turns} turns in {last.hours:.2f} h, {kills} workers killed"
    console.print(terminal(table_of(samples), title))
    findings = findings_of(samples)
    for finding in findings:
        console.print(finding)
    console.print(
        "verdict: something grew or failed" if findings else "verdict: nothing grew or failed"
    )
    raise typer.Exit(1 if findings else 0)


if __name__ == "__main__":
    run_program(app, "benchmarks.soak")
