"""``drlpp learn``: learn a placement on live workers, race it, export the best."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from drlpp.agents import (
    AGENTS,
    AgentHyperparameters,
    GuidedHyperparameters,
    Hyperparameters,
    OwnAgent,
    hyperparameters_of,
    learn_placement,
)
from drlpp.capturing.capture import capture
from drlpp.cli.arguments import Learn
from drlpp.cli.command_line import console
from drlpp.cli.layouts import layout_contenders
from drlpp.cli.race_command import (
    export_winner,
    live_run,
    run_and_report,
    say_how_to_train,
)
from drlpp.cli.settings import model_reference
from drlpp.costs.contraction import ContractedGraph
from drlpp.costs.placed_stages import PlacedStages
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.envs import ContractedMeasurer, CostPrior, MeasurementMemory
from drlpp.envs.placement_env import check_one_stage_each
from drlpp.errors import HostLost, InvalidInput, RunFailure
from drlpp.exporting.layouts.module_cuts import contracted_at
from drlpp.io.formatting import emulation_text
from drlpp.io.progress_lines import shown
from drlpp.placement.candidate import Candidate
from drlpp.planners import PlanningProblem, Space, objective_for
from drlpp.racing.comparison import Comparison, compare
from drlpp.racing.contenders import Contender
from drlpp.racing.rivals import RIVALS, Grounds, rivals
from drlpp.racing.to_loss import Course, RaceData, export
from drlpp.racing.training_race import RaceEnd
from drlpp.report.tables import describe_comparison
from drlpp.runtime import ClusterSession, load_or_measure_profile
from drlpp.schedule.analysis.staleness import samples_factor, usual_staleness
from drlpp.specs.cluster import Cluster
from drlpp.specs.optimizer_spec import OptimizerSpec


def learn(given: Learn) -> dict[str, Any]:
    """Run ``drlpp learn``."""
    race, search, measuring, run = given.race, given.search, given.measuring, given.run
    for name in ("target_loss", "epochs", "limit"):
        if getattr(race, name) is not None and race.data is None:
            raise InvalidInput(
                f"--{name.replace('_', '-')} belongs to a race to a loss; give --data as well"
            )
    hyperparameters = hyperparameters_of(given.agent)
    method, spec = given.method.method(), given.optimizer.spec()
    # Rewards of algorithms are seconds, and candidates of an agent of one's own may be any.
    usual = None if isinstance(hyperparameters, GuidedHyperparameters) else "seconds"
    objective = objective_for(method, search.objective or usual)
    search = replace(search, objective=objective)
    given = replace(given, search=search)
    # What cannot vary is said before anything is measured.
    search.space(method, given.method)
    if objective not in ("seconds", "loss"):
        raise InvalidInput(
            f"--objective {objective}: learning has seconds, or loss; drlpp plan all"
        )
    to_loss = objective == "loss"
    if (search.varied(given.method) or to_loss) and isinstance(hyperparameters, Hyperparameters):
        raise InvalidInput(
            f"agent {given.agent} chooses placements alone, by their seconds, as in the paper; "
            "leave out --vary and --objective, or take the guided agent"
        )
    reference = model_reference(given.model, given.model_option)
    folder = run.folder("runs", given.model)
    captured = capture(reference, seed=run.seed)
    data = None if race.data is None else RaceData(captured, race.data, run.seed, console.print)
    of_session = {**given.workers.of_session(folder), "method": method, "optimizer": spec}
    # Nor what is no layout.
    layout_contenders(search.compare, captured, of_session["workers"], method)
    named = given.agent in AGENTS or isinstance(hyperparameters, OwnAgent)
    settings: dict[str, Any] = {
        # A file may have changed meanwhile, a name has not.
        "agent": given.agent if named else hyperparameters.model_dump(),
        "minibatches": measuring.minibatches,
        "repetitions": measuring.repetitions,
        "objective": objective,
    }
    contracted = None
    if search.cut_at != "operators":
        contracted = contracted_at(search.cut_at, captured.graph, lambda: captured.task.module)
        settings["cut_at"] = search.cut_at
    if search.vary is not None:
        settings["vary"] = search.vary
    with live_run("run", given, captured, folder, of_session, settings) as session:
        parameters = sum(parameter.numel() for parameter in captured.module.parameters())
        console.print(
            f"{reference}: {len(captured.graph)} operators, "
            f"{parameters:,} parameters; {session.accelerators} workers; {method}"
        )
        if emulated := of_session["speeds"]:
            console.print(emulation_text(emulated))
        if contracted is not None:
            divided = f"{len(contracted.graph)} {search.cut_at}"
            console.print(f"the agent cuts between {divided}; rivals between operators")
        if method.recomputation_text:
            console.print(method.recomputation_text)
        name = given.agent.rpartition(":")[2] if ":" in given.agent else Path(given.agent).stem
        agent = name if name not in RIVALS else f"agent {name}"
        job = session, folder, agent, given, hyperparameters, objective, contracted, data
        LearningJob(*job).run()
    return {"folder": str(folder)}


@dataclass
class LearningJob:
    """What a run learns with, and on.

    Attributes:
        session: the workers.
        out: folder of the run.
        agent: the agent's name.
        given: what the command was given.
        hyperparameters: of a new agent.
        objective: of search, race and verdict.
        contracted: modules or blocks that the agent cuts between; None for operators.
        data: of a race to a loss at the end; None for none.
        profile, cluster: what is known of the model and the workers, when it runs.
    """

    session: ClusterSession
    out: Path
    agent: str
    given: Learn
    hyperparameters: AgentHyperparameters
    objective: str
    contracted: ContractedGraph | None
    data: RaceData | None
    profile: Profile = field(init=False)
    cluster: Cluster = field(init=False)

    def run(self) -> None:
        """Profile, learn, compare, race to a loss if asked to, and export the best placement."""
        # An environment says so as well, but after profiling.
        check_one_stage_each(self.session.method)
        with shown(console, "profiling operators and links"):
            self.profile, self.cluster = load_or_measure_profile(self.session, self.out)
        self.memory.per_second = cache(self._declared.problem.per_second)
        try:
            if not self._learn():
                raise KeyboardInterrupt
            comparison = self._compare()
        except (HostLost, KeyboardInterrupt):
            self._export_best_so_far()
            raise
        # A race takes long, and may be interrupted: whatever comes of it, a placement is there.
        path = self._export_best(comparison)
        if self.data is None:
            say_how_to_train(self.session, path)
        else:
            course, end = self._race_to_loss(self.data)
            export_winner(self.out, comparison.contenders, course, end, self.cluster)

    def candidate(self, measured: Candidate) -> Candidate:
        """Return a candidate of the agent's as one of operators."""
        if self.contracted is None:
            return measured
        return self.contracted.expanded_candidate(measured)

    @cached_property
    def memory(self) -> MeasurementMemory:
        """What has been measured, and measures the rest."""
        contracted, given = self.contracted, self.given.measuring
        measurer = ContractedMeasurer(self.session, contracted) if contracted else self.session
        path = self.out / "measurements.jsonl"
        return MeasurementMemory(measurer, given.minibatches, path, given.repetitions)

    @cached_property
    def _space(self) -> Space:
        space = self.given.search.space(self.session.method, self.given.method, self.profile)
        search = self.given.search
        if (search.vary, search.objective) == (None, "seconds"):
            # Depths are no faster way to the same weights: they are later ones. Nothing is staler
            # by itself than the method is with a stage on every accelerator.
            usual = usual_staleness(self.session.method, self.session.accelerators)
            space = replace(space, most_staleness=usual)
        return space

    @cached_property
    def _declared(self) -> CostPrior:
        method = self.session.method
        known = self.contracted.profile(self.profile) if self.contracted else self.profile
        # The paper's agent places only.
        chosen = None if isinstance(self.hyperparameters, Hyperparameters) else self._space
        problem = PlanningProblem.profiled(known, self.cluster, method, self.session.optimizer)
        problem = replace(problem, seed=self.session.seed, objective=self.objective)
        return CostPrior(problem, chosen)

    def _grounds(self, space: Space) -> Grounds:
        return Grounds(self.session, self.profile, self.cluster, space, self.objective)

    def _learn(self) -> bool:
        """Train the agent until the budget is spent; False if Ctrl-C ended it before."""
        memory, session, budget = self.memory, self.session, self.given.measuring.budget
        if memory.distinct >= budget:
            return True
        known, begin = memory.distinct, time.perf_counter()
        before = session.running_seconds, session.deploying_seconds
        try:
            return learn_placement(
                memory,
                self.out,
                hyperparameters=self.hyperparameters,
                budget=budget,
                seed=session.seed,
                declared=self._declared,
                console=console,
            )
        finally:
            whole = time.perf_counter() - begin
            running = session.running_seconds - before[0]
            deploying = session.deploying_seconds - before[1]
            console.print(
                f"learning took {whole:.0f} s for {memory.distinct - known} placements: measuring "
                f"{running / whole:.1%}, deploying {deploying / whole:.1%}, the agent and logging "
                f"{1 - (running + deploying) / whole:.1%}"
            )

    def _compare(self) -> Comparison:
        """Race the fastest placements against the best rivals."""
        session, memory = self.session, self.memory
        fastest = [candidate for candidate, _ in memory.fastest(self.given.measuring.finalists)]
        failed = [o.reason for o in memory.outcomes.values() if o.outcome == "failed"]
        if not fastest and failed:
            raise RunFailure(
                f"none of {memory.distinct} placements could be measured: {failed[-1]}"
            )
        finalists = [Contender.of(self.candidate(candidate), self.agent) for candidate in fastest]
        grounds = self._grounds(self._space)
        # A layout of the user's has the microbatches that were chosen meanwhile.
        chosen = {"microbatches": fastest[0].method.microbatches} if fastest else {}
        method = session.method.model_copy(update=chosen)
        given = self.given.search.compare, session.captured, session.accelerators, method
        measuring, begin = self.given.measuring, time.perf_counter()
        with shown(console, "planning what a user has without an agent") as tell:
            comparison = compare(
                session,
                list(map(grounds.weighed, [*finalists, *layout_contenders(*given)])),
                lambda: rivals(grounds, measuring.minibatches, tell),
                cluster=self.cluster,
                rounds=measuring.rounds,
                minibatches=measuring.minibatches,
                path=self.out / "comparison.json",
                on_progress=tell,
            )
        console.print(f"comparing took {time.perf_counter() - begin:.0f} s")
        console.print(describe_comparison(comparison))
        return comparison

    def _export_best(self, comparison: Comparison) -> Path:
        """Write the simplest of the placements that are as good as the best one; return where."""
        verdict = comparison.verdict
        if verdict is None or verdict.placement is None:
            raise RunFailure("none of the placements compared could be measured")
        chosen = comparison.contenders[verdict.placement]
        path = export(self.session, chosen, self.cluster, self.out)
        # What torch does may be better, but it has no placement.
        if verdict.is_torch_as_good:
            simplest = comparison.contenders[verdict.equals[0]]
            why = f"the best placement, though {simplest.found_by} is as good without one"
        elif verdict.placement == verdict.fastest:
            why = "the first of the race"
        else:
            why = "the simplest of those that are not significantly slower than the fastest"
        how_long = "" if self.data is None else " until the race to a loss has ended"
        console.print(
            f"exported to {path}{how_long}: {chosen.beside(self.session.method)}, found by "
            f"{chosen.found_by}, {why}"
        )
        return path

    def _export_best_so_far(self) -> None:
        """Write the best placement so far: after Ctrl-C, or when a host is lost."""
        memory, budget = self.memory, self.given.measuring.budget
        best = memory.best()
        if best is None:
            console.print("stopped before any placement was measured")
            return
        contender = Contender.of(self.candidate(best[0]), self.agent).with_outcome(best[1])
        path = export(self.session, contender, self.cluster, self.out)
        seconds = best[1].seconds_per_minibatch
        console.print(
            f"stopped after {memory.distinct} of {budget} placements; the best is in {path} "
            f"({contender.beside(self.session.method)}, {seconds * 1e3:.1f} ms per minibatch, not "
            "compared with plain PyTorch)"
        )

    def _race_to_loss(self, data: RaceData) -> tuple[Course, RaceEnd]:
        """Race the fastest placements of each kind with what a user has anyway, on their data."""
        # How late gradients are follows from what operators send each other, not modules of them.
        measured = (
            (self.candidate(candidate), outcome.seconds_per_minibatch)
            for candidate, outcome in self.memory.fastest(self.memory.distinct)
        )
        workload, optimizer = Workload.of(self.profile), self.session.optimizer
        worthy = worth_racing(measured, workload, optimizer)[: self.given.measuring.finalists]
        named = [Contender.of(candidate, self.agent) for candidate in worthy]
        folder = self.out / "race"
        folder.mkdir(exist_ok=True)
        grounds = self._grounds(Space(self.session.method))
        return run_and_report(grounds, named, data, folder, self.given.race.options)


def worth_racing(
    measured: Iterable[tuple[Candidate, float]],
    workload: Workload,
    optimizer: OptimizerSpec | None = None,
) -> list[Candidate]:
    """Return the best of each kind, by seconds times the samples that late gradients cost.

    A kind is a number of stages, with replicas or without, two on a worker or one, a schedule, and
    a number of microbatches: what a race to a loss may judge otherwise.

    Args:
        measured: candidates of the workload's operators, and their seconds per minibatch.
        workload: of the model.
        optimizer: which may tolerate lateness.
    """
    costs: dict[Candidate, float] = {}
    for candidate, seconds in measured:
        pipeline = PlacedStages(workload, candidate.placement).pipeline
        costs[candidate] = seconds * samples_factor(pipeline, candidate.method, optimizer)
    best: dict[object, Candidate] = {}
    for candidate in sorted(costs, key=costs.__getitem__):
        placement, method = candidate.placement, candidate.method
        replicated = len(placement.accelerators) > len(placement.stages)
        shape = len(placement.stages), replicated, placement.is_folded
        best.setdefault((*shape, method.schedule, method.microbatches), candidate)
    return list(best.values())
