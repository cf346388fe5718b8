"""What ``drlpp learn`` does on live workers: learn, compare, export."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from drlpp.cli.command_line import build_console, shown

if TYPE_CHECKING:
    from drlpp.agents import AgentHyperparameters
    from drlpp.costs.contraction import ContractedGraph
    from drlpp.costs.profile import Profile
    from drlpp.costs.workload import Workload
    from drlpp.envs import CostPrior, MeasurementMemory, Measurer
    from drlpp.envs.measuring.search_file import Sureness
    from drlpp.placement.candidate import Candidate
    from drlpp.planners import Space, Vary
    from drlpp.racing.comparison import Comparison
    from drlpp.racing.contenders import Contender
    from drlpp.racing.to_loss import Course, RaceData, RaceOptions
    from drlpp.racing.training_race import RaceEnd
    from drlpp.runtime import ClusterSession, TimeSpent
    from drlpp.specs.cluster import Cluster

console = build_console()

MEASUREMENTS_NAME = "measurements.jsonl"
"""The file in the folder of a run that holds all of its measurements."""


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
    vary: frozenset[Vary] | None
    asked_to_vary: bool
    most_staleness: int | None
    chooses_microbatches: bool
    race_data: RaceData | None
    race_options: RaceOptions
    layouts: Mapping[str, Contender]
    contracted: ContractedGraph | None = None

    def candidate(self, measured: Candidate) -> Candidate:
        """Return a candidate of the agent's as one of operators."""
        if self.contracted is None:
            return measured
        return self.contracted.expanded_candidate(measured)


class Accelerators(NamedTuple):
    """What a run learns on: the workers, and what is known of them and of the model."""

    session: ClusterSession
    profile: Profile
    cluster: Cluster


def run_job(job: Job, session: ClusterSession) -> None:
    """Profile, learn, compare, race to a loss if asked to, and export the best placement.

    Raises:
        InvalidInput: no agent proposes placements for the session's method.
        HostLost: a host is lost; what was measured and trained is kept.
    """
    from drlpp.cli.learning.outcome import export_best, export_winner, say_how_to_train
    from drlpp.envs.codec import check_one_stage_each
    from drlpp.runtime import load_or_measure_profile

    # An environment says so as well, but after profiling.
    check_one_stage_each(session.method)
    with shown(console, "profiling operators and links"):
        profile, cluster = load_or_measure_profile(session, job.out)
    there = Accelerators(session, profile, cluster)
    if job.chooses_microbatches:
        _choose_microbatches(job, there)
    found = _learn_and_compare(job, there)
    if found is None:
        return
    memory, comparison = found
    # A race takes long, and may be interrupted: whatever comes of it, a placement is there.
    path = export_best(job, session, comparison, there.cluster)
    if job.race_data is None:
        say_how_to_train(session, path)
    else:
        course, end = _race_to_loss(job, there, memory, job.race_data)
        export_winner(job.out, session, comparison, course, end, there.cluster)


def _learn_and_compare(
    job: Job, there: Accelerators
) -> tuple[MeasurementMemory, Comparison] | None:
    """Learn and compare; None if Ctrl-C ended it.

    Raises:
        HostLost: a host is lost; what was measured is kept.
    """
    from drlpp.cli.learning.outcome import export_best_so_far
    from drlpp.costs.memory import MemoryModel
    from drlpp.envs import ContractedMeasurer, CostPrior, MeasurementMemory
    from drlpp.errors import HostLost
    from drlpp.planners import Space
    from drlpp.schedule.analysis.staleness import usual_staleness

    session = there.session
    memory_model = MemoryModel.of(session.method, session.optimizer)
    measurer: Measurer = session
    known = there.profile
    if job.contracted is not None:
        measurer = ContractedMeasurer(measurer, job.contracted)
        known = job.contracted.profile(known)
    path = job.out / MEASUREMENTS_NAME
    memory = MeasurementMemory(measurer, job.minibatches, path, job.repetitions)
    most_staleness = job.most_staleness
    if most_staleness is None and not job.asked_to_vary:
        # Depths are no faster way to the same weights: they are later ones. Nothing is staler by
        # itself than the method is with a stage on every accelerator.
        most_staleness = usual_staleness(session.method, session.accelerators)
    space = Space(session.method, job.vary, most_staleness, there.profile.batch_size)
    chosen = methods_of_the_agent(job, space)
    declared = CostPrior.of(known, there.cluster, session.method, memory_model, chosen)
    declared = declared.with_seed(job.seed)
    comparison = None
    try:
        if _learn(job, there, memory, declared):
            comparison = _compare(job, there, memory, declared, space)
    except HostLost:
        export_best_so_far(job, session, memory, there.cluster)
        raise
    if comparison is None:
        export_best_so_far(job, session, memory, there.cluster)
        return None
    return memory, comparison


def methods_of_the_agent(job: Job, space: Space) -> Space | None:
    """Return what the agent chooses from: all of ``space``, if it is the guided one.

    Agents after the paper place only (None), or place only what is not too stale.
    """
    from drlpp.agents import GuidedDRLPP

    if issubclass(job.hyperparameters.algorithm, GuidedDRLPP):
        return space
    placing = replace(space, vary=frozenset())
    return None if job.most_staleness is None else placing


def _race_to_loss(
    job: Job, there: Accelerators, memory: MeasurementMemory, data: RaceData
) -> tuple[Course, RaceEnd]:
    """Race the fastest placements of each kind with what a user has anyway, on the user's data."""
    from drlpp.cli.learning.race_command import run_and_report
    from drlpp.costs.workload import Workload
    from drlpp.racing.contenders import Contender

    # How late gradients are follows from what operators send each other, not modules of them.
    measured = (job.candidate(candidate) for candidate, _ in memory.fastest(memory.distinct))
    fastest = worth_racing(measured, Workload.of(there.profile))[: job.finalists]
    named = [Contender.of(candidate, job.agent) for candidate in fastest]
    folder = job.out / "race"
    folder.mkdir(exist_ok=True)
    return run_and_report(console, *there, named, data, folder, job.race_options)


def worth_racing(candidates: Iterable[Candidate], workload: Workload) -> list[Candidate]:
    """Return the fastest of each kind, then what is slower and has fresher weights than these.

    A kind is a number of stages, with replicas or without, two on a worker or one, a schedule, and
    a number of microbatches: what a race to a loss may judge otherwise than seconds do. What is
    slower than another of its kind, and whose gradients are as late, can win no race.

    Args:
        candidates: of the workload's operators, the fastest first.
        workload: of the model.
    """
    from drlpp.costs.analytic_model import pipeline_of
    from drlpp.schedule.analysis.staleness import mean_staleness

    least: dict[tuple[int, bool, bool, str, int], float] = {}
    fastest: list[Candidate] = []
    fresher: list[Candidate] = []
    for candidate in candidates:
        placement, method = candidate.placement, candidate.method
        stages, folded = placement.stages, placement.is_folded
        replicated = any(len(stage.accelerators) > 1 for stage in stages)
        kind = len(stages), replicated, folded, method.schedule, method.microbatches
        late = mean_staleness(pipeline_of(workload, placement), method)
        if kind not in least:
            fastest.append(candidate)
        elif late < least[kind]:
            fresher.append(candidate)
        least[kind] = min(late, least.get(kind, late))
    return fastest + fresher


def _choose_microbatches(job: Job, there: Accelerators) -> None:
    """Let the session's method have the microbatches that suit the model here."""
    from drlpp.racing.microbatches import FILE_NAME, choose_microbatches
    from drlpp.schedule.method_choice import choose_method

    if (job.out / MEASUREMENTS_NAME).exists() and not (job.out / FILE_NAME).exists():
        # A run of an older drlpp, whose placements were measured with whole minibatches.
        return
    session = there.session
    with shown(console, "choosing microbatches") as tell:
        choice = choose_microbatches(session, there.profile, there.cluster, job.out, tell)
    if choice is not None:
        options = {"microbatches": choice.best.microbatches}
        session.method = choose_method(None, options, session.method)
        console.print(str(choice), soft_wrap=True)


def _learn(job: Job, there: Accelerators, memory: MeasurementMemory, declared: CostPrior) -> bool:
    """Train the agent until the budget is spent; False if Ctrl-C ended it before."""
    from drlpp.agents import learn_placement

    if memory.distinct >= job.budget:
        return True

    session = there.session
    measured_before = memory.distinct
    before = replace(session.spent)
    sure: list[Sureness] = []
    begin = time.perf_counter()
    try:
        return learn_placement(
            memory,
            job.out,
            hyperparameters=job.hyperparameters,
            budget=job.budget,
            seed=job.seed,
            declared=declared,
            console=console,
            on_sure=sure.append,
        )
    finally:
        took = time.perf_counter() - begin
        keep_split(job.out, session, before, took, memory.distinct - measured_before, *sure)


def keep_split(
    folder: Path,
    session: ClusterSession,
    before: TimeSpent,
    wall_seconds: float,
    measured: int,
    sure: Sureness | None = None,
) -> None:
    """Print where the time went since ``before``, and write it down with that of earlier parts."""
    from drlpp.envs.measuring.search_file import FILE_NAME, SearchFile
    from drlpp.io.documents import read_document, write_document

    # What choosing microbatches took is no part of learning.
    part = SearchFile(
        placements=measured,
        seconds=wall_seconds,
        cluster_seconds=session.spent.running_seconds - before.running_seconds,
        deploying_seconds=session.spent.deploying_seconds - before.deploying_seconds,
        sureness=sure,
    )
    console.print(part.split_text)
    path = folder / FILE_NAME
    write_document(path, part.after(read_document(path, SearchFile)) if path.exists() else part)


def _compare(
    job: Job,
    there: Accelerators,
    memory: MeasurementMemory,
    declared: CostPrior,
    space: Space,
) -> Comparison | None:
    """Race the fastest placements against the best rivals; None if Ctrl-C ended it."""
    from drlpp.cli.layouts import is_file, measured_lines
    from drlpp.errors import RunFailure
    from drlpp.racing.comparison import compare
    from drlpp.racing.contenders import Contender, Heat
    from drlpp.racing.race import RaceRules
    from drlpp.racing.rivals import Grounds, rival_heats, with_equal_numbers
    from drlpp.report.board import write_race
    from drlpp.report.tables import describe_comparison

    session = there.session
    fastest = [candidate for candidate, _ in memory.fastest(job.finalists)]
    failed = {c: o.reason for c, o in memory.outcomes.items() if o.outcome == "failed"}
    if not fastest and failed:
        reason = list(failed.values())[-1]
        raise RunFailure(f"none of {memory.distinct} placements could be measured: {reason}")
    finalists = [Contender.of(job.candidate(candidate), job.agent) for candidate in fastest]
    # What the agent has asked planners for, they need not plan again.
    alike = declared.space is space and job.contracted is None
    proposed = (lambda: declared.planned) if alike else None
    # A method that is not a file's own may have got its microbatches after it was read.
    own = [
        Heat(
            candidates=(
                layout if is_file(text) else layout.model_copy(update={"method": session.method}),
            )
        )
        for text, layout in job.layouts.items()
    ]
    begin = time.perf_counter()
    try:
        with shown(console, "planning what a user has without an agent") as tell:
            grounds = Grounds(session, there.profile, there.cluster, space, proposed)
            rivals = rival_heats(grounds)
            comparison = compare(
                session,
                finalists,
                with_equal_numbers([*rivals, *own], finalists, there.cluster),
                rules=RaceRules(rounds=job.rounds),
                minibatches=job.minibatches,
                path=job.out / "comparison.json",
                on_progress=tell,
            )
    except KeyboardInterrupt:
        return None
    write_race(job.out, comparison)
    console.print(f"comparing took {time.perf_counter() - begin:.0f} s")
    console.print(describe_comparison(comparison))
    for line in measured_lines(comparison, job.layouts):
        console.print(line, soft_wrap=True, markup=False)
    return comparison
