"""PipeDream's Table 1: its planner's configuration against data parallelism, an epoch and a loss.

Data parallelism is the paper's: every worker has a minibatch of its own, and one update is made of
all of them. PipeDream's planner chooses stages and replicas from a profile of the live workers and
links, for one level of the slowest bandwidth, as for the paper's 15-1.

Links are those of one host, or to a model what 10 and 25 Gbit/s, as between the hosts of the
paper's clusters A and B, are to the published one.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from pandas import DataFrame

from benchmarks.deep_models import VOCABULARY
from benchmarks.learning.study import Point, reached
from benchmarks.papers.claims import NOT_YET, Claim, judged_seconds, section, spread
from benchmarks.papers.figures import PIPEDREAM_TABLE_1
from benchmarks.study import Needs, Row, Study, this_machine
from benchmarks.world import hosts_of_one
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.errors import RunFailure
from drlpp.io.documents import Record
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Option
from drlpp.models.zoo import SMALL
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement, Stage
from drlpp.planners import PlanningProblem
from drlpp.planners.pipedream.pipedream import pipedream
from drlpp.racing.to_loss import RaceData
from drlpp.runtime import ClusterSession
from drlpp.runtime.training.trainer import Trainer
from drlpp.runtime.training.training_plan import TrainerCallbacks, TrainingPlan
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Cluster, Link
from drlpp.specs.optimizer_spec import OptimizerSpec

REPETITIONS = 6
MINIBATCHES = 16
SEEDS = (0, 1, 2)
LONGEST = 2
"""Times the epochs of data parallelism, after which the other is given up."""
_TARGET_SHARE = 0.75
DATA_PARALLEL, PIPEDREAM = "data parallelism", "PipeDream"


@dataclass(frozen=True)
class Model:
    """A row of the table.

    Attributes:
        reference: name of the model.
        data: their name; None if it is timed only.
        options: of the model.
        ratio: R_w of the published one at 10 Gbit/s, seconds of sending all weights for each of a
            minibatch on one GPU, by the profile in PipeDream's repository; None without one.
        rate: of Adam, the same for both, as in the paper.
        epochs: that data parallelism trains.
    """

    reference: str
    data: str | None
    options: dict[str, Option] = field(default_factory=dict)
    ratio: float | None = None
    rate: float = 0.001
    epochs: int = 8

    @property
    def named(self) -> ModelReference:
        """The model."""
        return ModelReference.named(self.reference, **self.options)

    @property
    def optimizer(self) -> OptimizerSpec:
        """Adam with the rate."""
        return OptimizerSpec.parse("adam", lr=self.rate)


MODELS = {
    "AlexNet, digits": Model("alexnet", "digits", SMALL["alexnet"], 2.29, rate=0.0003),
    "VGG-16": Model("vgg16", None, SMALL["vgg16"], 0.66),
    "ResNet-50": Model("resnet50", None, SMALL["resnet50"], 0.18),
    "GNMT-8": Model("gnmt8", None, SMALL["gnmt8"], 6.93),
    "LSTMs with attention, dates": Model(
        "examples.translation:translator",
        "benchmarks.learning.tasks:date_sentences",
        rate=0.003,
        epochs=6,
    ),
    "AWD LM, text": Model(
        "awd_lm",
        "benchmarks.learning.tasks:short_text",
        {
            "batch_size": 32,
            "sequence_length": 32,
            "vocabulary": len(VOCABULARY),
            "embedding": 128,
            "hidden": 256,
            "dropout": 0.2,
        },
        rate=0.003,
        epochs=6,
    ),
}
SHORT = "LSTMs with attention, dates"
WORKERS = 4
SPEED = 0.4
"""Of an accelerator, in cores."""

LINKS = {"one host": None, "10 Gbit/s": 1.0, "25 Gbit/s": 2.5}
"""Times as fast as 10 Gbit/s."""


class Case(Record):
    """A model on links, and how often both ways of training it are measured."""

    model: str
    links: str
    repetitions: int = REPETITIONS
    minibatches: int = MINIBATCHES


class Timing(Row):
    """What the planner chose, and seconds of a minibatch of both ways.

    Attributes:
        bandwidth: bytes a second between the first and the last worker, as measured.
        placement: PipeDream's.
        epoch: minibatches of an epoch.
        seconds: of a minibatch, of each repetition, by the way of training.
        machine: where and when.
    """

    case: Case
    bandwidth: float
    placement: Placement
    epoch: int
    seconds: dict[str, tuple[float, ...]]
    machine: str

    @property
    def found(self) -> Placement | None:
        """PipeDream's placement; None where that is data parallelism."""
        return None if len(self.placement.stages) == 1 else self.placement


class TrainingCase(Record):
    """A training on live workers.

    Attributes:
        model: its name.
        placement: of the stages; None for data parallelism.
        epochs: that are trained.
        target: the loss with which it ends after them; else it is given up after twice as many.
        seed: of the order.
    """

    model: str
    placement: Placement | None
    epochs: int
    target: float | None = None
    seed: int = 0


class Training(Row):
    """One live training, whose seconds do not count: its evaluations after every epoch."""

    case: TrainingCase
    points: tuple[Point, ...]

    def minibatches_to(self, target: float) -> float | None:
        """Return after how many minibatches a loss was reached, None if it was not."""
        return reached(target, self.points)


def _session(captured: CapturedModel, model: Model, links: Cluster | None = None) -> ClusterSession:
    speeds = [SPEED] * WORKERS
    return ClusterSession(captured, WORKERS, optimizer=model.optimizer, speeds=speeds, links=links)


def everywhere(operators: int, workers: int) -> Candidate:
    """Return data parallelism."""
    whole = Stage(operators=tuple(range(operators)), accelerators=tuple(range(workers)))
    return Candidate(Placement(stages=(whole,)), Method(policy="sync"))


class Times(Study[Case, Timing]):
    """PipeDream's Table 1 and figure 11."""

    name = "pipedream"
    question = "How much faster is PipeDream's configuration than data parallelism (Table 1)?"
    row = Timing
    needs = Needs(quiet=True, hours=0.5)

    def cases(self, seeds: int | None, *, short: bool) -> list[Case]:
        """Return every model on every link; those without a ratio on one host."""
        if short:
            return [Case(model=SHORT, links="one host", repetitions=1, minibatches=4)]
        return [
            Case(model=model, links=links, repetitions=seeds or REPETITIONS)
            for links, faster in LINKS.items()
            for model, of in MODELS.items()
            if faster is None or of.ratio is not None
        ]

    def run(self, case: Case) -> Timing:
        """Profile, plan, and measure both ways in turns.

        Raises:
            RunFailure: a placement cannot be run.
        """
        model, faster = MODELS[case.model], LINKS[case.links]
        captured, links = capture(model.named), None
        with _session(captured, model) as session:
            profile, measured = session.profile(5 if case.minibatches >= MINIBATCHES else 2)
        if faster is not None:
            assert model.ratio is not None
            sending = model.ratio / faster * sum(profile.seconds) / SPEED
            link = Link(bandwidth_bytes_per_second=captured.graph.parameter_bytes / sending)
            links = measured = hosts_of_one(WORKERS, link).with_speeds([SPEED] * WORKERS)
        with _session(captured, model, links) as session:
            method = Method(policy="stash")
            problem = PlanningProblem.profiled(profile, measured, method, session.optimizer)
            placement = pipedream(problem, flat=True).placement
            ways = {
                DATA_PARALLEL: everywhere(len(session.graph), WORKERS),
                PIPEDREAM: Candidate(placement, method),
            }
            seconds: dict[str, list[float]] = {way: [] for way in ways}
            for repetition in range(case.repetitions):
                # There and back: what drifts hits both alike.
                for way in ways if repetition % 2 == 0 else reversed(ways):
                    outcome = session.measure(ways[way], case.minibatches)
                    if not isinstance(outcome, Measurement):
                        raise RunFailure(f"{case.model}, {way}: {outcome.reason}")
                    seconds[way].append(outcome.seconds_per_minibatch)
            return Timing(
                case=case,
                bandwidth=measured.link(0, WORKERS - 1).bandwidth_bytes_per_second,
                placement=placement,
                epoch=RaceData(captured, model.data).first.minibatches if model.data else 0,
                seconds={way: tuple(found) for way, found in seconds.items()},
                machine=this_machine(),
            )

    def table(self, rows: Sequence[Timing]) -> Mapping[str, DataFrame]:
        """Return Table 1 and figure 11, with the trainings in git."""
        return table_1(rows, LEARNING.stored())


class Learning(Study[TrainingCase, Training]):
    """The epochs of PipeDream's Table 1 and figure 11."""

    name = "pipedream-learning"
    question = "Does PipeDream need as many epochs as data parallelism (figure 11)?"
    row = Training
    needs = Needs(hours=3)

    def cases(self, seeds: int | None, *, short: bool) -> list[TrainingCase]:
        """Return what data parallelism and the placements of the timings in git train."""
        if short:
            return [TrainingCase(model=SHORT, placement=None, epochs=1)]
        timings = TIMES.stored()
        return [
            TrainingCase(model=name, placement=placement, epochs=model.epochs, seed=seed)
            for name, model in MODELS.items()
            if model.data is not None
            for placement in dict.fromkeys(
                [None, *(t.found for t in timings if t.case.model == name)]
            )
            for seed in (range(seeds) if seeds else SEEDS)
        ]

    def wanted(self, cases: Sequence[TrainingCase], rows: Sequence[Training]) -> list[TrainingCase]:
        """Return what is missing; pipelines wait for the loss that data parallelism sets."""
        wanted = []
        for case in cases:
            if case.placement is not None:
                target = target_of(rows, case.model, case.epochs)
                if target is None:
                    continue
                case = case.model_copy(update={"target": target})
            known = trainings_of(rows, case.model, case.placement, case.epochs)
            if all(training.case.seed != case.seed for training in known):
                wanted.append(case)
        return wanted

    def run(self, case: TrainingCase) -> Training:
        """Train on live workers, as fast as they can; nothing is timed."""
        model = MODELS[case.model]
        captured = capture(model.named)
        with ClusterSession(captured, WORKERS, optimizer=model.optimizer, device="cpu") as session:
            if case.placement is None:
                way = everywhere(len(session.graph), WORKERS)
            else:
                way = Candidate(case.placement, Method(policy="stash"))
            assert model.data is not None
            data = RaceData(captured, model.data)
            return Training(case=case, points=tuple(_epochs(session, data, way, case)))

    def table(self, rows: Sequence[Training]) -> Mapping[str, DataFrame]:
        """Return the epochs to the loss that data parallelism has after three quarters of its."""
        lines = []
        for ran in dict.fromkeys((r.case.model, r.case.placement, r.case.epochs) for r in rows):
            name, placement, epochs = ran
            target = target_of(rows, name, epochs) or 0.0
            found = trainings_of(rows, *ran)
            taken = [r.minibatches_to(target) or r.points[-1].minibatches for r in found]
            way = DATA_PARALLEL if placement is None else placement.configuration
            lines.append(
                {
                    "model, data": name,
                    "configuration": way,
                    "minibatches to the loss": spread(taken, 1),
                }
            )
        return {"Trainings": DataFrame(lines)}


def _epochs(
    session: ClusterSession, data: RaceData, way: Candidate, case: TrainingCase
) -> Iterator[Point]:
    """Train, and yield an evaluation after every epoch, until the goal or the end."""
    optimizer, goal, epochs = MODELS[case.model].optimizer, case.target, case.epochs
    ordered = data.ordered(case.seed)
    with TemporaryDirectory() as folder:
        endless = TrainingPlan(epochs=1)
        trainer = Trainer(session, ordered, Path(folder), endless, TrainerCallbacks(), optimizer)
        for epoch in range(1, 1 + epochs * (1 if goal is None else LONGEST)):
            minibatches = epoch * data.first.minibatches
            stint = trainer.train_until(way, minibatches)
            assert stint.held_out_loss is not None
            yield Point(minibatches=minibatches, loss=stint.held_out_loss, score=stint.score)
            if goal is not None and epoch >= epochs and stint.held_out_loss <= goal:
                return


def trainings_of(
    found: Sequence[Training], model: str, placement: Placement | None, epochs: int
) -> list[Training]:
    """Return the trainings of all seeds."""
    key = (model, placement, epochs)
    return [t for t in found if (t.case.model, t.case.placement, t.case.epochs) == key]


def target_of(found: Sequence[Training], model: str, epochs: int) -> float | None:
    """Return the mean loss of data parallelism after three quarters of its epochs."""
    last = max(round(_TARGET_SHARE * epochs), 1) - 1
    chosen = [t.points[last].loss for t in trainings_of(found, model, None, epochs)]
    losses = [loss for loss in chosen if loss is not None]
    return statistics.mean(losses) if losses else None


def table_1(timings: Sequence[Timing], trainings: Sequence[Training]) -> dict[str, DataFrame]:
    """Return Table 1 and figure 11 from times and from trainings."""
    rows: list[dict[str, str]] = []
    claims: list[Claim] = []
    for timing in timings:
        ratio = _speed_up(timing)
        epochs = _epochs_to_target(timing, trainings)
        plain, theirs = (epochs[way] for way in (DATA_PARALLEL, PIPEDREAM))
        both = bool(plain and theirs)
        to_loss = ratio * statistics.mean(plain) / statistics.mean(theirs) if both else None
        learns = MODELS[timing.case.model].data is not None
        rows.append(
            {
                "model, data": timing.case.model,
                "links": f"{timing.case.links} ({timing.bandwidth / 1e6:.0f} MB/s)",
                "configuration": timing.placement.configuration,
                "epoch time": f"{ratio:.2f}×",
                "time to loss": f"{to_loss:.2f}×" if to_loss else NOT_YET if learns else "–",
                "epochs, data parallelism": spread(plain, 1) if learns else "–",
                "epochs, PipeDream": spread(theirs, 1) if learns else "–",
            }
        )
        where = f"{timing.case.model}, {timing.case.links}"
        claims.append(
            judged_seconds(
                "an epoch takes less time than with data parallelism",
                where,
                dict(enumerate(timing.seconds[PIPEDREAM])),
                dict(enumerate(timing.seconds[DATA_PARALLEL])),
            )
        )
        if learns:
            claims.append(
                judged_seconds(
                    "about as many epochs (±10%) to the loss (figure 11)",
                    where,
                    dict(enumerate(theirs)),
                    dict(enumerate(plain)),
                    alike_within=0.1,
                )
            )
    return section(
        [
            (
                "Speed-up of PipeDream's planner's configuration over data parallelism on four "
                "emulated accelerators; epochs to the loss that data parallelism has after three "
                "quarters of its own (not reached counts as the last)",
                DataFrame(rows),
            ),
            ("The paper's Table 1", PIPEDREAM_TABLE_1),
        ],
        claims,
    )


def _speed_up(timing: Timing) -> float:
    medians = {way: statistics.median(found) for way, found in timing.seconds.items()}
    return medians[DATA_PARALLEL] / medians[PIPEDREAM]


def _epochs_to_target(timing: Timing, trainings: Sequence[Training]) -> dict[str, list[float]]:
    """Return the epochs of each seed, by the way of training; none before all are trained."""
    name, epochs = timing.case.model, MODELS[timing.case.model].epochs
    target = target_of(trainings, name, epochs)
    if target is None:
        return {DATA_PARALLEL: [], PIPEDREAM: []}
    return {
        way: [
            (training.minibatches_to(target) or training.points[-1].minibatches) / timing.epoch
            for training in trainings_of(trainings, name, placement, epochs)
            if training.case.seed in SEEDS
        ]
        for way, placement in ((DATA_PARALLEL, None), (PIPEDREAM, timing.found))
    }


TIMES, LEARNING = Times(), Learning()
