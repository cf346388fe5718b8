"""``drlpp learn``: learn a placement on live workers, race it against its rivals, export the best.

The main job, which ``train_agent.py`` at the top of the repository runs too.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drlpp.cli.command_line import (
    OPTIMIZER_HELP,
    POLICY_HELP,
    DeviceOption,
    MethodOptions,
    ModelOptions,
    OptimizerOptions,
    Size,
    SizeOption,
    TimeoutOption,
    build_console,
    model_reference,
    optimizer_options,
    read_options,
    resume_hint_on_interrupt,
    run_program,
    shown,
)
from drlpp.errors import InvalidInput
from drlpp.schedule.method import DeviceChoice
from drlpp.schedule.weight_policies import PIPEOPTIM

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from drlpp.agents import AgentHyperparameters
    from drlpp.comparison.comparison_file import Comparison
    from drlpp.costs.profile import Profile
    from drlpp.envs import CostPrior, MeasurementMemory
    from drlpp.placement.candidate import Candidate
    from drlpp.placement.measurement import Measurement, Outcome
    from drlpp.runtime import ClusterSession
    from drlpp.specs.cluster import Cluster
    from drlpp.timeline.timeline import TimedAction
    from drlpp.training_race.race_data import RaceData

console = build_console()


class Objective(StrEnum):
    """What the best placement is best at."""

    TIME_PER_MINIBATCH = "time-per-minibatch"
    TIME_TO_LOSS = "time-to-loss"


@dataclass(frozen=True)
class Job:
    """The job that is asked for."""

    out: Path
    agent: str
    hyperparameters: AgentHyperparameters
    budget: int
    minibatches: int
    repetitions: int
    finalists: int
    rounds: int
    seed: int
    chooses_microbatches: bool
    race_data: RaceData | None
    target_loss: float | None


def learn(
    model: Annotated[
        str, typer.Option(help="A name in the zoo, or package.module:factory.")
    ] = "alexnet",
    size: SizeOption = Size.SMALL,
    model_option: ModelOptions = [],  # noqa: B006 - typer copies it
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Worker processes, each one accelerator; 4, or all that torchrun has started.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for everything found; else runs/MODEL.")
    ] = None,
    agent: Annotated[
        str,
        typer.Option(
            help="guided by planners and corrected costs; drl-pp: the paper's; tuned: the paper's "
            "for small budgets; or a YAML file of your own."
        ),
    ] = "guided",
    budget: Annotated[int, typer.Option(min=1, help="Distinct placements to measure.")] = 100,
    minibatches: Annotated[
        int, typer.Option(min=1, max=100_000, help="Minibatches of a measurement.")
    ] = 30,
    repetitions: Annotated[
        int,
        typer.Option(
            min=1,
            help="Runs, in turns with others, that a measurement's minibatches are divided in.",
        ),
    ] = 3,
    finalists: Annotated[
        int, typer.Option(min=1, help="Measured placements in the final comparison.")
    ] = 4,
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds of the final comparison, at most.")
    ] = 7,
    policy: Annotated[
        str | None, typer.Option(help=f"{POLICY_HELP}.", show_default=PIPEOPTIM.name)
    ] = None,
    method_option: MethodOptions = [],  # noqa: B006 - typer copies it
    optimizer: Annotated[str, typer.Option(help=f"{OPTIMIZER_HELP}.")] = "adam",
    lr: Annotated[float | None, typer.Option(help="Learning rate of the optimizer.")] = None,
    optimizer_option: OptimizerOptions = [],  # noqa: B006 - typer copies it
    seed: Annotated[int, typer.Option(min=0, help="Of the agent and the model's weights.")] = 0,
    device: DeviceOption = DeviceChoice.AUTO,
    timeout: TimeoutOption = None,
    objective: Annotated[
        Objective,
        typer.Option(
            help="time-to-loss also trains the fastest placements on --data, in a race with plain "
            "PyTorch (drlpp race).",
        ),
    ] = Objective.TIME_PER_MINIBATCH,
    data: Annotated[
        str | None,
        typer.Option(help="For time-to-loss: a name (digits), or package.module:factory."),
    ] = None,
    target_loss: Annotated[
        float | None,
        typer.Option(help="For time-to-loss; else what plain PyTorch reaches in 3 epochs."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out, if it has begun.")
    ] = False,
) -> None:
    """Learn the fastest placement of a model on live workers, and export it."""
    # Imported here, so that --help and errors in arguments do not wait for torch.
    from drlpp.agents import AGENTS, hyperparameters_of
    from drlpp.capturing.capture import capture
    from drlpp.comparison.contenders import RIVALS
    from drlpp.io.run_folder import open_run_folder
    from drlpp.io.trust_memory import remember_trust
    from drlpp.runtime import ClusterSession, default_num_workers, restarted
    from drlpp.schedule.method import choose_method
    from drlpp.specs.optimizer_spec import OptimizerSpec
    from drlpp.training_race.race_data import RaceData

    if (objective is Objective.TIME_TO_LOSS) != (data is not None):
        raise InvalidInput("--objective time-to-loss and --data belong together; give both")
    if target_loss is not None and data is None:
        raise InvalidInput("--target-loss belongs to --objective time-to-loss; give that as well")
    hyperparameters = hyperparameters_of(agent)
    options = read_options(method_option, "method", "accumulate=4")
    method = choose_method(policy, options)
    optimizer_spec = OptimizerSpec.parse(optimizer, **optimizer_options(optimizer_option, lr))
    reference = model_reference(model, size, model_option)
    folder = out or Path("runs") / model.replace(":", "-").replace("/", "-")
    captured = capture(reference, seed=seed)
    race_data = None if data is None else RaceData(captured, data, seed, _tell)
    workers = workers or default_num_workers()
    settings = {
        "model": reference.model_dump(),
        "workers": workers,
        "device": device.value,
        # A file may have changed meanwhile, a name has not.
        "agent": agent if agent in AGENTS else hyperparameters.model_dump(),
        "minibatches": minibatches,
        "repetitions": repetitions,
        "method": method.model_dump(),
        "optimizer": optimizer_spec.settings,
        "seed": seed,
    }
    again = restarted()
    with (
        open_run_folder(
            folder, "drlpp learn", settings, resume=resume, restarted=again, note=_tell
        ),
        resume_hint_on_interrupt("the same command with --resume continues the run"),
    ):
        if reason := remember_trust(folder, [reference, optimizer_spec]):
            console.print(reason)
        console.print(
            f"{reference}: {len(captured.graph)} operators, "
            f"{captured.graph.parameter_bytes / 4e6:.1f} M parameters; {workers} workers; {method}"
        )
        job = Job(
            out=folder,
            agent=name if (name := Path(agent).stem) not in RIVALS else f"agent {name}",
            hyperparameters=hyperparameters,
            budget=budget,
            minibatches=minibatches,
            repetitions=repetitions,
            finalists=finalists,
            rounds=rounds,
            seed=seed,
            chooses_microbatches="microbatches" not in options,
            race_data=race_data,
            target_loss=target_loss,
        )
        with ClusterSession(
            captured,
            workers,
            method=method,
            optimizer=optimizer_spec,
            seed=seed,
            timeout_seconds=timeout,
            device=device,
            note=_tell,
        ) as session:
            _run(job, session)


def _tell(note: str) -> None:
    console.print(note, markup=False)


def _run(job: Job, session: ClusterSession) -> None:
    from drlpp.costs.memory import MemoryModel
    from drlpp.envs import CostPrior, MeasurementMemory
    from drlpp.errors import HostLost
    from drlpp.runtime import load_or_measure_profile

    with shown(console, "profiling operators and links"):
        profile, cluster = load_or_measure_profile(session, job.out)
    path = job.out / "measurements.jsonl"
    if job.chooses_microbatches:
        _choose_microbatches(job, session, profile, cluster, measured=path.exists())
    memory = MeasurementMemory(session, job.minibatches, path, job.repetitions)
    memory_model = MemoryModel.of(session.method, session.optimizer)
    declared = CostPrior.of(profile, cluster, session.method, memory_model)
    try:
        comparison = None
        if _learn(job, session, memory, declared):
            comparison = _compare(job, session, memory, profile, cluster)
    except HostLost:
        _export_best_so_far(job, session, memory, cluster)
        raise
    if comparison is None:
        _export_best_so_far(job, session, memory, cluster)
    else:
        _export_best(job, session, comparison, cluster)
        if job.race_data is not None:
            _race_to_loss(job, session, memory, job.race_data)


def _race_to_loss(
    job: Job, session: ClusterSession, memory: MeasurementMemory, data: RaceData
) -> None:
    """Race the fastest placements of each kind with what a user has anyway, on the user's data."""
    from drlpp.cli.race_command import run_and_report
    from drlpp.comparison.contenders import Contender
    from drlpp.training_race.race_to_loss import RaceOptions

    fastest: dict[tuple[int, bool], Contender] = {}
    for candidate, _ in memory.fastest(memory.distinct):
        stages = candidate.placement.stages
        kind = len(stages), any(len(stage.accelerators) > 1 for stage in stages)
        fastest.setdefault(kind, Contender.of(candidate, job.agent))
    named = list(fastest.values())[: job.finalists]
    folder = job.out / "race"
    folder.mkdir(exist_ok=True)
    options = RaceOptions(target_loss=job.target_loss)
    run_and_report(console, session, named, data, folder, options)


def _choose_microbatches(
    job: Job, session: ClusterSession, profile: Profile, cluster: Cluster, *, measured: bool
) -> None:
    """Let the session's method have the microbatches that suit the model here."""
    from drlpp.comparison.microbatches import FILE_NAME, choose_microbatches
    from drlpp.schedule.method import choose_method

    if measured and not (job.out / FILE_NAME).exists():
        # A run of an older drlpp, whose placements were measured with whole minibatches.
        return
    with shown(console, "choosing microbatches") as tell:
        choice = choose_microbatches(session, profile, cluster, job.out, tell)
    if choice is not None:
        options = {"microbatches": choice.best.microbatches}
        session.method = choose_method(None, options, session.method)
        console.print(str(choice), soft_wrap=True)


def _learn(
    job: Job, session: ClusterSession, memory: MeasurementMemory, declared: CostPrior
) -> bool:
    """Train the agent until the budget is spent; False if Ctrl-C ended it before."""
    from drlpp.agents import learn_placement
    from drlpp.timeline.figure import draw

    if memory.distinct >= job.budget:
        return True

    timelines: dict[Candidate, tuple[TimedAction, ...]] = {}

    def keep_timeline(candidate: Candidate, outcome: Outcome) -> None:
        timelines[candidate] = session.steady_timeline()

    def picture(candidate: Candidate, measurement: Measurement) -> Figure | None:
        if candidate not in timelines:
            return None
        title = f"{candidate.configuration}, {measurement.seconds_per_minibatch * 1e3:.1f} ms"
        return draw(timelines[candidate], title, session.plan(candidate).pipeline)

    # When a placement is drawn, others of its rollout may have been measured after it.
    memory.observers.append(keep_timeline)
    measured_before = memory.distinct
    begin = time.perf_counter()
    finished = learn_placement(
        memory,
        job.out,
        hyperparameters=job.hyperparameters,
        budget=job.budget,
        seed=job.seed,
        declared=declared,
        picture=picture,
        console=console,
    )
    _print_split(session, time.perf_counter() - begin, memory.distinct - measured_before)
    return finished


def _print_split(session: ClusterSession, wall_seconds: float, measured: int) -> None:
    spent = session.spent
    agent_seconds = wall_seconds - spent.running_seconds - spent.deploying_seconds
    outside = wall_seconds - spent.running_seconds
    console.print(
        f"learning took {wall_seconds:.0f} s for {measured} placements: "
        f"measuring {spent.running_seconds / wall_seconds:.1%}, "
        f"outside of it {outside / wall_seconds:.1%} "
        f"(deploying {spent.deploying_seconds / wall_seconds:.1%}, "
        f"policy, PPO and logging {agent_seconds / wall_seconds:.1%})"
    )


def _compare(
    job: Job, session: ClusterSession, memory: MeasurementMemory, profile: Profile, cluster: Cluster
) -> Comparison | None:
    """Race the fastest placements against the best rivals; None if Ctrl-C ended it."""
    from drlpp.cli.tables import describe
    from drlpp.comparison.compare import compare
    from drlpp.comparison.contenders import Contender
    from drlpp.comparison.race import RaceRules
    from drlpp.comparison.rivals import rival_heats
    from drlpp.errors import RunFailure

    if memory.best() is None:
        reasons = [o.reason for o in memory.outcomes.values() if o.outcome == "failed"]
        raise RunFailure(f"none of {memory.distinct} placements could be measured: {reasons[-1]}")
    finalists = [
        Contender.of(candidate, job.agent) for candidate, _ in memory.fastest(job.finalists)
    ]
    begin = time.perf_counter()
    try:
        with shown(console, "planning what a user has without an agent") as tell:
            comparison = compare(
                session,
                finalists,
                rival_heats(session, profile, cluster),
                rules=RaceRules(rounds=job.rounds),
                minibatches=job.minibatches,
                path=job.out / "comparison.json",
                on_progress=tell,
            )
    except KeyboardInterrupt:
        return None
    console.print(f"comparing took {time.perf_counter() - begin:.0f} s")
    console.print(describe(comparison))
    return comparison


def _export_best(
    job: Job, session: ClusterSession, comparison: Comparison, cluster: Cluster
) -> None:
    """Write the simplest of the placements that are as good as the best one."""
    from drlpp.comparison.placement_export import export
    from drlpp.errors import RunFailure

    verdict = comparison.verdict
    if verdict is None or verdict.placement is None:
        raise RunFailure("none of the placements compared could be measured")
    chosen = comparison.contender(verdict.placement)
    path = export(session, chosen, cluster, job.out)
    # Plain PyTorch may be better, but it has no placement.
    best = "" if verdict.placement in verdict.equals else "the best placement, "
    console.print(f"exported to {path}: {best}{chosen.configuration}, found by {chosen.found_by}")
    if session.captured.task.loss is not None:
        console.print(f"train with it: drlpp train {path} --data digits")


def _export_best_so_far(
    job: Job, session: ClusterSession, memory: MeasurementMemory, cluster: Cluster
) -> None:
    """Write the fastest placement that has been measured.

    This is done after Ctrl-C, or without a host.
    """
    from drlpp.comparison.contenders import Contender
    from drlpp.comparison.placement_export import export

    best = memory.best()
    if best is None:
        console.print("stopped before any placement was measured")
        return
    contender = Contender.of(best[0], job.agent).with_outcome(best[1])
    path = export(session, contender, cluster, job.out)
    stopped = (
        f"after {memory.distinct} of {job.budget} placements"
        if memory.distinct < job.budget
        else f"in the final comparison, after all {memory.distinct} placements"
    )
    console.print(
        f"stopped {stopped}; the fastest so far is in {path} ({contender.configuration}, "
        f"{best[1].seconds_per_minibatch * 1e3:.1f} ms per minibatch, not compared with what a "
        "user has without an agent). Continue with --resume"
    )


def main() -> None:
    """Run ``train_agent.py``."""
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(learn)
    run_program(app, "train_agent.py")
