"""What ``drlpp learn`` does on live workers: learn, compare, race to a loss."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from drlpp.cli.command_line import console, shown
from drlpp.cli.settings import MethodSettings, SearchSettings, count

if TYPE_CHECKING:
    from drlpp.agents import AgentHyperparameters
    from drlpp.costs.contraction import ContractedGraph
    from drlpp.costs.profile import Profile
    from drlpp.costs.workload import Workload
    from drlpp.envs import CostPrior, MeasurementMemory
    from drlpp.envs.measuring.search_file import Confidence
    from drlpp.placement.candidate import Candidate
    from drlpp.planners import Space
    from drlpp.racing.comparison import Comparison
    from drlpp.racing.to_loss import Course, RaceData
    from drlpp.racing.training_race import RaceEnd
    from drlpp.runtime import ClusterSession, TimeSpent
    from drlpp.specs.cluster import Cluster

MEASUREMENTS_NAME = "measurements.jsonl"
"""The file in the folder of a run that holds all of its measurements."""


@dataclass(frozen=True)
class MeasuringSettings:
    """How much is measured."""

    budget: Annotated[int, count("Number of placements to measure, at most.")] = 100
    minibatches: Annotated[int, count("Minibatches of a measurement.", most=100_000)] = 30
    repetitions: Annotated[int, count("Runs that these minibatches are divided into.")] = 3
    finalists: Annotated[int, count("Measured placements in the final comparison.")] = 4
    rounds: Annotated[int, count("Rounds of the final comparison, at most.")] = 7


@dataclass
class LearningJob:
    """What a run learns with, and on.

    Attributes:
        session: the workers.
        out: folder of the run.
        agent: the agent's name.
        hyperparameters: of a new agent.
        measuring, search, method: as they were given.
        contracted: modules or blocks that the agent cuts between; None for operators.
        data: of a race to a loss at the end; None for none.
        race_options: of that race.
        profile, cluster: what is known of the model and the workers, when it runs.
    """

    session: ClusterSession
    out: Path
    agent: str
    hyperparameters: AgentHyperparameters
    measuring: MeasuringSettings
    search: SearchSettings
    method: MethodSettings
    contracted: ContractedGraph | None
    data: RaceData | None
    race_options: dict[str, Any]
    profile: Profile = field(init=False)
    cluster: Cluster = field(init=False)

    def run(self) -> None:
        """Profile, learn, compare, race to a loss if asked to, and export the best placement."""
        from drlpp.cli.learning.outcome import (
            export_best,
            export_best_so_far,
            export_winner,
            say_how_to_train,
        )
        from drlpp.envs.codec import check_one_stage_each
        from drlpp.errors import HostLost
        from drlpp.runtime import load_or_measure_profile

        # An environment says so as well, but after profiling.
        check_one_stage_each(self.session.method)
        with shown("profiling operators and links"):
            self.profile, self.cluster = load_or_measure_profile(self.session, self.out)
        self._choose_microbatches()
        try:
            comparison = self._compare() if self._learn() else None
        except HostLost:
            export_best_so_far(self)
            raise
        if comparison is None:
            export_best_so_far(self)
            return
        # A race takes long, and may be interrupted: whatever comes of it, a placement is there.
        path = export_best(self, comparison)
        if self.data is None:
            say_how_to_train(self.session, path)
        else:
            course, end = self._race_to_loss(self.data)
            export_winner(self.out, self.session, comparison, course, end, self.cluster)

    def candidate(self, measured: Candidate) -> Candidate:
        """Return a candidate of the agent's as one of operators."""
        if self.contracted is None:
            return measured
        return self.contracted.expanded_candidate(measured)

    @cached_property
    def memory(self) -> MeasurementMemory:
        """What has been measured, and measures the rest."""
        from drlpp.envs import ContractedMeasurer, MeasurementMemory

        contracted, given = self.contracted, self.measuring
        measurer = ContractedMeasurer(self.session, contracted) if contracted else self.session
        path = self.out / MEASUREMENTS_NAME
        return MeasurementMemory(measurer, given.minibatches, path, given.repetitions)

    @cached_property
    def _space(self) -> Space:
        from drlpp.schedule.analysis.staleness import usual_staleness

        space = self.search.space(self.session.method, self.method, self.profile.batch_size)
        if space.most_staleness is None and self.search.vary is None:
            # Depths are no faster way to the same weights: they are later ones. Nothing is staler
            # by itself than the method is with a stage on every accelerator.
            usual = usual_staleness(self.session.method, self.session.accelerators)
            space = replace(space, most_staleness=usual)
        return space

    @cached_property
    def _declared(self) -> CostPrior:
        from drlpp.costs.memory import MemoryModel
        from drlpp.envs import CostPrior

        method = self.session.method
        known = self.contracted.profile(self.profile) if self.contracted else self.profile
        memory = MemoryModel.of(method, self.session.optimizer)
        chosen = methods_of_the_agent(self.hyperparameters, self.search, self._space)
        prior = CostPrior.of(known, self.cluster, method, memory, chosen)
        return prior.with_seed(self.session.seed)

    def _choose_microbatches(self) -> None:
        """Let the session's method have the microbatches that suit the model here."""
        from drlpp.planners import Vary
        from drlpp.racing.microbatches import choose_microbatches
        from drlpp.schedule.method_choice import choose_method

        varied = self.search.varied(self.method) or ()
        if "microbatches" in self.method.options or Vary.MICROBATCHES in varied:
            return
        session = self.session
        with shown("choosing microbatches") as tell:
            choice = choose_microbatches(session, self.profile, self.cluster, self.out, tell)
        if choice is not None:
            options = {"microbatches": choice.best.microbatches}
            session.method = choose_method(None, options, session.method)
            console.print(str(choice))

    def _learn(self) -> bool:
        """Train the agent until the budget is spent; False if Ctrl-C ended it before."""
        from drlpp.agents import learn_placement

        memory, session, budget = self.memory, self.session, self.measuring.budget
        if memory.distinct >= budget:
            return True
        measured_before, before = memory.distinct, replace(session.spent)
        sure: list[Confidence] = []
        begin = time.perf_counter()
        try:
            return learn_placement(
                memory,
                self.out,
                hyperparameters=self.hyperparameters,
                budget=budget,
                seed=session.seed,
                declared=self._declared,
                console=console,
                on_confidence=sure.append,
            )
        finally:
            took = time.perf_counter() - begin
            keep_split(self.out, session, before, took, memory.distinct - measured_before, *sure)

    def _compare(self) -> Comparison | None:
        """Race the fastest placements against the best rivals; None if Ctrl-C ended it."""
        from drlpp.cli.layouts import layout_contenders
        from drlpp.errors import RunFailure
        from drlpp.racing.comparison import compare
        from drlpp.racing.contenders import Contender, Heat
        from drlpp.racing.rivals import Grounds, rival_heats
        from drlpp.report.tables import describe_comparison

        session, memory, declared = self.session, self.memory, self._declared
        fastest = [candidate for candidate, _ in memory.fastest(self.measuring.finalists)]
        failed = [o.reason for o in memory.outcomes.values() if o.outcome == "failed"]
        if not fastest and failed:
            raise RunFailure(
                f"none of {memory.distinct} placements could be measured: {failed[-1]}"
            )
        finalists = [Contender.of(self.candidate(candidate), self.agent) for candidate in fastest]
        # What the agent has asked planners for, they need not plan again.
        alike = declared.space is self._space and self.contracted is None
        proposed = (lambda: declared.planned) if alike else None
        # A layout by modules has the microbatches that were chosen meanwhile.
        given = self.search.compare, session.captured, session.accelerators, session.method
        own = [Heat(candidates=(layout,)) for layout in layout_contenders(*given).values()]
        begin = time.perf_counter()
        try:
            with shown("planning what a user has without an agent") as tell:
                grounds = Grounds(session, self.profile, self.cluster, self._space, proposed)
                comparison = compare(
                    session,
                    finalists,
                    [*rival_heats(grounds), *own],
                    cluster=self.cluster,
                    rounds=self.measuring.rounds,
                    minibatches=self.measuring.minibatches,
                    path=self.out / "comparison.json",
                    on_progress=tell,
                )
        except KeyboardInterrupt:
            return None
        console.print(f"comparing took {time.perf_counter() - begin:.0f} s")
        console.print(describe_comparison(comparison))
        return comparison

    def _race_to_loss(self, data: RaceData) -> tuple[Course, RaceEnd]:
        """Race the fastest placements of each kind with what a user has anyway, on their data."""
        from drlpp.cli.learning.race_command import run_and_report
        from drlpp.costs.workload import Workload
        from drlpp.racing.contenders import Contender

        # How late gradients are follows from what operators send each other, not modules of them.
        fastest = self.memory.fastest(self.memory.distinct)
        measured = (self.candidate(candidate) for candidate, _ in fastest)
        worthy = worth_racing(measured, Workload.of(self.profile))[: self.measuring.finalists]
        named = [Contender.of(candidate, self.agent) for candidate in worthy]
        folder = self.out / "race"
        folder.mkdir(exist_ok=True)
        known = self.session, self.profile, self.cluster
        return run_and_report(*known, named, data, folder, self.race_options)


def methods_of_the_agent(
    hyperparameters: AgentHyperparameters, search: SearchSettings, space: Space
) -> Space | None:
    """Return what the agent chooses from: all of ``space``, if it is the guided one.

    Agents after the paper place only (None), or place only what is not too stale.
    """
    from drlpp.agents import GuidedDRLPP

    if issubclass(hyperparameters.algorithm, GuidedDRLPP):
        return space
    placing = replace(space, vary=frozenset())
    return None if search.max_staleness is None else placing


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


def keep_split(
    folder: Path,
    session: ClusterSession,
    before: TimeSpent,
    wall_seconds: float,
    measured: int,
    sure: Confidence | None = None,
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
        confidence=sure,
    )
    console.print(part.split_text)
    path = folder / FILE_NAME
    write_document(path, part.after(read_document(path, SearchFile)) if path.exists() else part)
