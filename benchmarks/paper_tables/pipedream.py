"""PipeDream's Table 1: its planner's configuration against data parallelism, an epoch and a loss.

Data parallelism is the paper's: every worker has a minibatch of its own, and one update is made of
all of them. PipeDream's planner chooses stages and replicas from a profile of the live workers and
links, for one level of the slowest bandwidth, as for the paper's 15-1.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.deep_models import VOCABULARY
from benchmarks.learning.curves import minibatches_to
from benchmarks.learning.race_tasks import first_text
from benchmarks.machine import this_machine
from benchmarks.paper_tables.learning import Point
from drlpp.capturing.capture import capture
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
from drlpp.runtime import ClusterSession
from drlpp.schedule.method import Method
from drlpp.specs.data import Data
from drlpp.specs.optimizer_spec import OptimizerSpec
from drlpp.training_race.learners import PipelineLearner
from drlpp.training_race.race_data import RaceData

REPETITIONS = 6
MINIBATCHES = 16
SEEDS = (0, 1, 2)
LONGEST = 2
"""Times the epochs of data parallelism, after which the other is given up."""
_TARGET_SHARE = 0.75
DATA_PARALLEL, PIPEDREAM = "data parallelism", "PipeDream"


def text(inputs: object = None) -> Data:
    """Return sequences of Python's documentation: half as many as races have."""
    return first_text(1600)


@dataclass(frozen=True)
class Model:
    """A row of the table.

    Attributes:
        reference: name of the model.
        data: their name.
        options: of the model.
        rate: of Adam, the same for both, as in the paper.
        epochs: that data parallelism trains.
        learns: whether it is trained to a loss, or timed only.
    """

    reference: str
    data: str
    options: dict[str, Option] = field(default_factory=dict)
    rate: float = 0.001
    epochs: int = 8
    learns: bool = True

    @property
    def named(self) -> ModelReference:
        """The model."""
        return ModelReference.named(self.reference, **self.options)

    @property
    def optimizer(self) -> OptimizerSpec:
        """Adam with the rate."""
        return OptimizerSpec.parse("adam", lr=self.rate)


MODELS = {
    "AlexNet, digits": Model("alexnet", "digits", SMALL["alexnet"], rate=0.0003),
    "ResNet-50, digits": Model("resnet50", "digits", SMALL["resnet50"], learns=False),
    "LSTMs with attention, dates": Model(
        "examples.translation:translator",
        "benchmarks.learning.race_tasks:date_sentences",
        rate=0.003,
        epochs=6,
    ),
    "AWD LM, text": Model(
        "awd_lm",
        "benchmarks.paper_tables.pipedream:text",
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
SHORT = ("LSTMs with attention, dates",)


class Timing(Record):
    """A model on a cluster: what the planner chose, and seconds of a minibatch of both ways.

    Attributes:
        model: its name in the table.
        links: the name of the cluster's links.
        bandwidth: bytes a second between the first and the last worker, as measured.
        placement: PipeDream's.
        minibatches: of an epoch.
        seconds: of a minibatch, of each repetition, by the way of training.
        machine: where and when.
    """

    model: str
    links: str
    bandwidth: float
    placement: Placement
    minibatches: int
    seconds: dict[str, tuple[float, ...]]
    machine: str


class Training(Record):
    """One live training, whose seconds do not count: its evaluations after every epoch."""

    model: str
    placement: Placement
    epochs: int
    seed: int
    points: tuple[Point, ...]

    def minibatches_to(self, target: float) -> float | None:
        """Return after how many minibatches a loss was reached, None if it was not."""
        return minibatches_to(target, [(p.minibatches, p.loss) for p in self.points])


def everywhere(operators: int, workers: int) -> Candidate:
    """Return data parallelism."""
    whole = Stage(operators=tuple(range(operators)), accelerators=tuple(range(workers)))
    return Candidate(Placement(stages=(whole,)), Method(policy="sync"))


def time_models(
    links: str,
    known: Sequence[str],
    tell: Callable[[Timing], None],
    *,
    workers: int,
    speed: float,
    cluster: str | None,
    short: bool,
) -> None:
    """Profile, plan, and measure both ways in turns, for every model that is not ``known``.

    Raises:
        RunFailure: a placement cannot be run.
    """
    for name in SHORT if short else MODELS:
        if name in known:
            continue
        model = MODELS[name]
        captured = capture(model.named)
        with ClusterSession(
            captured,
            workers,
            optimizer=model.optimizer,
            speeds=[speed] * workers if speed < 1 else None,
            device="cpu",
            cluster=cluster,
        ) as session:
            profile, measured = session.profile(2 if short else 5)
            method = Method(policy="stash")
            problem = PlanningProblem.profiled(profile, measured, method, session.optimizer)
            placement = pipedream(problem, flat=True).placement
            ways = {
                DATA_PARALLEL: everywhere(len(session.graph), workers),
                PIPEDREAM: Candidate(placement, method),
            }
            seconds: dict[str, list[float]] = {way: [] for way in ways}
            for repetition in range(1 if short else REPETITIONS):
                # There and back: what drifts hits both alike.
                for way in ways if repetition % 2 == 0 else reversed(ways):
                    outcome = session.measure(ways[way], 4 if short else MINIBATCHES)
                    if not isinstance(outcome, Measurement):
                        raise RunFailure(f"{name}, {way}: {outcome.reason}")
                    seconds[way].append(outcome.seconds_per_minibatch)
            tell(
                Timing(
                    model=name,
                    links=links,
                    bandwidth=measured.link(0, workers - 1).bandwidth_bytes_per_second,
                    placement=placement,
                    minibatches=RaceData(captured, model.data).first.minibatches,
                    seconds={way: tuple(found) for way, found in seconds.items()},
                    machine=str(this_machine()),
                )
            )


def wanted_placements(timings: Sequence[Timing], name: str) -> list[Placement]:
    """Return PipeDream's placements of a model, none twice."""
    return list(dict.fromkeys(t.placement for t in timings if t.model == name))


def learn_models(
    timings: Sequence[Timing],
    known: Sequence[Training],
    tell: Callable[[Training], None],
    *,
    workers: int,
    short: bool,
) -> None:
    """Train every model both ways on live workers, as fast as they can; nothing is timed.

    Raises:
        RunFailure: a training failed.
    """
    found = list(known)
    for name in SHORT if short else MODELS:
        model = MODELS[name]
        placements = wanted_placements(timings, name)
        if not (model.learns and placements):
            continue
        captured = capture(model.named)
        epochs = 1 if short else model.epochs
        with ClusterSession(captured, workers, optimizer=model.optimizer, device="cpu") as session:
            data = RaceData(captured, model.data)
            plain = everywhere(len(session.graph), workers)
            others = [Candidate(p, Method(policy="stash")) for p in placements]
            # What the planner leaves as it is has been trained already.
            for way in [plain, *(o for o in others if o.placement != plain.placement)]:
                for seed in SEEDS[: 1 if short else None]:
                    if training_of(found, name, way.placement, epochs, seed) is not None:
                        continue
                    goal = None if way is plain else target_of(found, name, plain.placement, epochs)
                    found.append(
                        Training(
                            model=name,
                            placement=way.placement,
                            epochs=epochs,
                            seed=seed,
                            points=tuple(_epochs(session, data, way, model, epochs, seed, goal)),
                        )
                    )
                    tell(found[-1])


def _epochs(
    session: ClusterSession,
    data: RaceData,
    way: Candidate,
    model: Model,
    epochs: int,
    seed: int,
    goal: float | None,
) -> Iterator[Point]:
    """Train, and yield an evaluation after every epoch, until the goal or the end."""
    with TemporaryDirectory() as folder:
        learner = PipelineLearner(
            session, session.plan(way), data.ordered(seed), Path(folder), model.optimizer
        )
        for epoch in range(1, 1 + epochs * (1 if goal is None else LONGEST)):
            minibatches = epoch * data.first.minibatches
            stint = learner.train_until(minibatches)
            assert stint.held_out_loss is not None
            yield Point(minibatches=minibatches, loss=stint.held_out_loss, score=stint.score)
            if goal is not None and epoch >= epochs and stint.held_out_loss <= goal:
                return


def training_of(
    found: Sequence[Training], model: str, placement: Placement, epochs: int, seed: int
) -> Training | None:
    """Return a training, None if it was not made."""
    key = (model, placement, epochs, seed)
    return next((t for t in found if (t.model, t.placement, t.epochs, t.seed) == key), None)


def target_of(found: Sequence[Training], model: str, plain: Placement, epochs: int) -> float | None:
    """Return the mean loss of data parallelism after three quarters of its epochs."""
    key = (model, plain, epochs)
    trainings = [t for t in found if (t.model, t.placement, t.epochs) == key]
    chosen = [t.points[max(round(_TARGET_SHARE * epochs), 1) - 1].loss for t in trainings]
    losses = [loss for loss in chosen if loss is not None]
    return statistics.mean(losses) if losses else None
