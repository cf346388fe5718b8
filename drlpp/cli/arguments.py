"""What each command takes: its docstring is the help, its fields are options or sections of them.

``commands.py`` makes a command of such a dataclass; ``main.py`` names the function that runs it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import typer

from drlpp.cli.settings import (
    MODEL,
    OUT,
    Compare,
    CostProfile,
    Data,
    Emulated,
    MeasuringSettings,
    MethodSettings,
    Model,
    ModelOptions,
    OptimizerSettings,
    RaceSettings,
    RayCluster,
    RunSettings,
    SameModel,
    SearchSettings,
    Seed,
    Workers,
    WorkerSettings,
    count,
    option,
)


@dataclass(frozen=True, kw_only=True)
class Learn:
    """Learn the fastest placement of a model on live workers, and export it to runs/MODEL.

    With --data the fastest placements are then raced to a loss (drlpp race), which decides.
    """

    model: Model = "alexnet"
    model_option: ModelOptions = field(default_factory=list)
    agent: str = option(
        "guided",
        "guided (planners and corrected costs), drl-pp (the paper's), a YAML file of your own, "
        "or package.module:name of an agent of your own.",
        "NAME",
    )
    measuring: MeasuringSettings
    search: SearchSettings
    race: RaceSettings
    method: MethodSettings
    optimizer: OptimizerSettings
    workers: WorkerSettings
    run: RunSettings


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train the model of a placement with it, and evaluate it on held-out data.

    Results go to 'training' next to PLACEMENT. With another number of --workers a placement for
    these is planned first.
    """

    placement: Annotated[Path, typer.Argument(help="A placement.json.", metavar="PLACEMENT")]
    model: SameModel = None
    model_option: ModelOptions = field(default_factory=list)
    data: Data = "digits"
    epochs: int = option(5, "Number of epochs.", "N")
    minibatches: int | None = count(None, "Number of minibatches.", most=100_000)
    method: MethodSettings
    optimizer: OptimizerSettings
    lr_schedule: str | None = option(
        None,
        "Scheduler of torch, 'cosineannealing T_max=10', or package.module:Class; "
        "interval=minibatch counts minibatches instead of epochs, warm_up=100 increases the "
        "rate over as many.",
        "'NAME KEY=VALUE …'",
    )
    synchronous_epochs: int = option(0, "First epochs that flush before every update.", "N")
    early_stopping: int | None = count(
        None, "End after N epochs in a row without a better held-out score (or loss)."
    )
    checkpoint_every: int = option(0, "Minibatches between checkpoints in an epoch; 0: none.", "N")
    checkpoints: str | None = option(
        None,
        "Folder that all hosts share, for checkpoints in parts. Default: a file in --out.",
        "FOLDER|URL",
    )
    workers: WorkerSettings
    elastic: str | None = option(
        None,
        "Continue with fewer workers when some are lost, with more when they return.",
        "MIN:MAX",
    )
    run: RunSettings


@dataclass(frozen=True, kw_only=True)
class Race:
    """Train candidates in turns on your data, plain PyTorch among them, until one is first.

    Results go to races/MODEL. The learning rate of the optimizer is the middle of those tried.
    """

    model: Model
    model_option: ModelOptions = field(default_factory=list)
    race: RaceSettings
    rates: int = count(3, "Learning rates to try for each candidate, √10 apart.")
    repetitions: int = count(3, "Trainings of each finalist, in different orders of samples.")
    compare: Compare = field(default_factory=list)
    method: MethodSettings
    optimizer: OptimizerSettings
    workers: WorkerSettings
    run: RunSettings


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Plan a placement without running it, and explain it. --out writes a placement.json.

    Without --profile the model is profiled here, on one worker; links that nobody has described
    (--cluster or --bandwidth) are measured between --workers.
    """

    model: Annotated[str | None, MODEL] = None
    model_option: ModelOptions = field(default_factory=list)
    profile: CostProfile = None
    cluster: Path | None = option(
        None, "Accelerators: a cluster.yaml, or a name such as a100-10gbit.", "CLUSTER"
    )
    workers: Workers = None
    bandwidth: float | None = option(
        None, "With --workers: bytes per second of the links between them.", "BYTES"
    )
    planner: str = option(
        "search",
        "search, in the simulator, from what the others propose; or data-parallel, gpipe "
        "or pipedream alone.",
        "NAME",
    )
    search: SearchSettings
    method: MethodSettings
    optimizer: OptimizerSettings
    out: Annotated[Path | None, OUT] = None
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Measure what every operator of a model costs on a worker, and the links between workers.

    Writes the profile to --out, and cluster.yaml next to it unless there is one.
    """

    model: Model
    model_option: ModelOptions = field(default_factory=list)
    workers: WorkerSettings
    out: Annotated[Path, OUT]


Target = Literal["torch", "torchtitan", "megatron", "deepspeed", "weights"]
"""Whose format a placement is exported in."""


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write a placement for another program, or the weights of a checkpoint.

    What it costs is simulated with the profile.json next to PLACEMENT, or with costs made of sizes.
    """

    source: Annotated[
        str,
        typer.Argument(
            metavar="PLACEMENT",
            help="A placement.json; with --to weights the folder of a training run, a "
            "checkpoint.pt, or the folder or URL given as --checkpoints.",
        ),
    ]
    to: Target = option(
        ...,
        "torch: a folder with a program that trains without drlpp; torchtitan: a folder with "
        "its options and a schedule; megatron: its arguments; deepspeed: a Python module; "
        "weights: the weights of a checkpoint as one model.safetensors.",
    )
    out: Annotated[Path, OUT]
    model: SameModel = None
    model_option: ModelOptions = field(default_factory=list)
    optimizer: OptimizerSettings
    seed: Seed = 0


Source = Literal["schedule", "simulator", "run"]
"""Where a timeline comes from."""


@dataclass(frozen=True, kw_only=True)
class Show:
    """Describe this machine, a model's operators, a run, a placement's timeline, or any file.

    --json prints the content: a model's graph, a file, a timeline for ui.perfetto.dev.
    """

    what: Annotated[
        str | None,
        typer.Argument(
            metavar="WHAT",
            help="A model, a file of drlpp or of costs, or the folder of a run, whose page "
            "report.html is written. Default: this machine.",
        ),
    ] = None
    model: SameModel = None
    model_option: ModelOptions = field(default_factory=list)
    timeline: Source | None = option(
        None,
        "Of a placement: what every worker does when. schedule: a forward takes 1, a backward "
        "2; simulator: predicted, from the profile.json next to it; run: measured on workers.",
    )
    minibatches: int | None = count(None, "Number of minibatches. Default: 8.", most=100_000)
    speeds: Emulated = None
    cluster: RayCluster = None
