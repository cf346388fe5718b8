"""A cluster session: workers that stay alive and run placement after placement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from drlpp.capturing.blocks import shorten
from drlpp.costs.profile import Profile
from drlpp.costs.profiles.short_runs import (
    SHORT_MINIBATCHES,
    run_short,
    with_short_runs,
)
from drlpp.costs.workload import Workload
from drlpp.errors import (
    CannotStart,
    HostLost,
    InvalidInput,
    RunFailure,
    StorageFailure,
    WorkerLost,
)
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import (
    LOST_TWICE,
    FailedMeasurement,
    Measurement,
    Outcome,
    is_steady,
)
from drlpp.placement.placement import Placement
from drlpp.runtime.deploying.deployment import Deployment
from drlpp.runtime.deploying.profile_commands import measuring_workers, profile_command, profile_of
from drlpp.runtime.deploying.run_commands import RunOptions
from drlpp.runtime.ipc.answers import RunResult
from drlpp.runtime.session.cluster_discovery import crowded_machine, session_cluster
from drlpp.runtime.session.link_measurement import time_hosts, time_ways
from drlpp.runtime.session.run_timeline import middle_of, timeline_of
from drlpp.runtime.session.windows import measurement_of
from drlpp.runtime.session.worker_session import WorkerSession
from drlpp.schedule.method import Method
from drlpp.schedule.schedule import Schedule
from drlpp.schedule.weight_policies import STASH
from drlpp.specs.cluster import Cluster
from drlpp.timeline.timeline import TimedAction

_MOST_RUNS = 3
"""Of a pipeline that does not get steady."""


class ClusterSession(WorkerSession):
    """Worker processes that hold one model and take placement after placement.

    Use it as a context manager, or call :meth:`close`::

        with ClusterSession("alexnet", workers=4) as session:
            outcome = session.measure(placement)

    A trial that runs out of memory, raises, hangs or loses a worker ends as a failed measurement
    with its reason; the workers are replaced and the next trial runs. One that loses a worker is
    measured once more before it counts as failed.

    Args:
        model: a :class:`~drlpp.Task`, a factory that returns one, a reference to such a factory or
            its name (of the zoo's, the small size), or a captured model.
        workers: how many processes; each is one accelerator, with one thread. By default 4, or all
            accelerators of the Ray cluster or the hosts that are named.
        method: schedule and weight policy of measurements that name none.
        optimizer: updates the weights.
        seed: of the model's weights and of dropout.
        timeout_seconds: without a word from any worker, after which a trial counts as hung; by
            default 120 s for the first trial, later 20 times the longest silence so far, and at
            least 20 s.
        time_limits: all limits of waiting, of which ``timeout_seconds`` is one.
        speeds: of every worker, at most 1, to emulate accelerators: a worker of speed 0.5 takes
            twice the processor time that a pass needs, and sleeps the rest of it. So several
            workers can share a core and still take their time in parallel. 1 each by default.
        device: what workers compute on: ``cpu``, ``cuda`` for the host's GPUs in turns, or
            ``auto`` for GPUs where there are any, unless workers are to be slower.
        cluster: a Ray cluster whose hosts the workers run on, instead of this machine: ``auto`` for
            the one that this machine belongs to, ``HOST:PORT`` of its head, or
            ``ray://HOST:PORT`` from outside. Its accelerators belong to the session until it is
            closed.
        hosts: of the cluster that are wanted, as ``cluster.yaml`` describes them; by default those
            that it has, the controller's first, as long as there are workers left for them.
        least: of the workers to begin with, if hosts are missing, or others use them: those are as
            if given up, until :meth:`take_back` finds them. By default all have to be there.
        note: called with a line if a measurement loses a worker and is made once more; warns by
            default.
    """

    def measure(
        self,
        placement: Placement | Candidate | ExecutionPlan,
        minibatches: int = 30,
        method: Method | None = None,
    ) -> Outcome:
        """Deploy a placement and measure its seconds per minibatch in steady state.

        A candidate, or its plan, is a placement with a method of its own. Where workers get further
        ahead of others while they are measured, the pipeline was not steady yet: it runs again, and
        is measured later, up to three times. What the last says counts, and how steady it was.

        After the run, while nothing else is sent, it also measures what a message takes between any
        two workers that exchange tensors or gradients.

        A worker may be killed for what the placement has nothing to do with, such as another
        program's want of memory: only one that loses a worker twice in a row has failed. Whatever
        else goes wrong would go wrong again, and a silence costs too much to wait for it twice.

        Raises:
            InvalidInput: the placement cannot be run with this model, workers and method.
            HostLost: a host cannot be reached any more. :meth:`give_up` its workers (``workers`` of
                the error has their numbers) to measure on the others, until :meth:`take_back` finds
                that they have returned.
            CannotStart: likewise of a worker that ends twice as soon as it is started.
            StorageFailure: there is no room for the session's files.
        """
        if minibatches < 1:
            raise InvalidInput(f"minibatches is {minibatches}; at least 1 is needed")
        self.timeline = ()
        plan = self.plan(placement, method)
        try:
            try:
                return self._measure_once(plan, minibatches)
            except WorkerLost as failure:
                lost = str(failure)
                configuration = plan.placement.configuration
                self._note(f"{lost}; its placement, {configuration}, is measured again")
            return self._measure_once(plan, minibatches)
        except (HostLost, StorageFailure):
            # No placement is to blame, and none will run.
            raise
        except WorkerLost as failure:
            reason = f"lost a worker twice: {lost}; when measured again, {failure}"
            return FailedMeasurement(failure=LOST_TWICE, reason=reason)
        except RunFailure as failure:
            return FailedMeasurement(failure=failure.kind, reason=str(failure))

    def _start_workers(self) -> None:
        """Start workers where that is necessary, again if one ends at once, until one ends twice.

        Raises:
            CannotStart: that one, for which no placement is to blame.
        """
        ended: Counter[int] = Counter()
        while True:
            try:
                return self._workers.prepare()
            except WorkerLost as failure:
                # Of several that end at once only the first to be noticed is named.
                ended.update(failure.workers)
                twice = [worker for worker in failure.workers if ended[worker] > 1]
                if twice:
                    raise CannotStart(f"{failure} whenever it is started", twice) from None
                if not failure.workers:
                    raise
                self._note(f"{failure} when it was started; it is started again")

    def _measure_once(self, plan: ExecutionPlan, minibatches: int) -> Measurement:
        self._start_workers()
        deployment = self.deploy(plan)
        window = plan.window(minibatches)
        options = RunOptions(order=self._workers.example_order)
        for runs_left in reversed(range(_MOST_RUNS)):
            schedule, results = self._run_unstopped(deployment, window.minibatches, options)
            found = measurement_of(schedule, results, window)
            if not runs_left or is_steady(found.steadiness, found.minibatches):
                break
            window = window.later()
        links = time_ways(self._workers, plan.pipeline, results)
        self.timeline, self.window = timeline_of(schedule, results), window
        return found.model_copy(update={"links": links})

    def _run_unstopped(
        self, deployment: Deployment, minibatches: int, options: RunOptions
    ) -> tuple[Schedule, dict[int, RunResult]]:
        """Run; run once more if the program was stopped (Ctrl-Z), since that was measured too."""
        stops = self._workers.listener.stops
        found = self.run(deployment, minibatches, options)
        return (
            found
            if stops == self._workers.listener.stops
            else self.run(deployment, minibatches, options)
        )

    def steady_timeline(self, minibatches: int = 8) -> tuple[TimedAction, ...]:
        """Return a few minibatches from the middle of the last measurement, as they really ran."""
        return middle_of(self.timeline, minibatches)

    def profile(self, repeats: int = 20) -> tuple[Profile, Cluster]:
        """Time every operator, and links within a host and between hosts.

        Of blocks that repeat, such as a decoder's layers, only a few are timed
        (:mod:`drlpp.capturing.blocks`).

        As many workers as compute at the same time when they train measure at the same time: one
        for each core, or all of them if they emulate slower accelerators. Then these run a few
        short pipelines together, which tell what operators by themselves do not
        (:mod:`drlpp.costs.profiles.short_runs`).

        Args:
            repeats: timed passes of everything; fewer, but five, if they take more than a second.

        Raises:
            HostLost: a host cannot be reached any more; see :meth:`measure`.
            RunFailure: if the workers fail.
        """
        self._check_present(range(self.accelerators), "a profile")
        self._workers.prepare()
        places = self._workers.hosts.places
        devices = [self._workers.devices[worker] for worker in range(self.accelerators)]
        measuring = measuring_workers(self.speeds, places, devices)
        transport = self._workers.transport(measuring)
        name = self._workers.new_name("profile")
        short = shorten(self.captured)
        command = profile_command(
            self.captured,
            short.captured,
            self.method,
            self.optimizer,
            repeats,
            name,
            measuring,
            transport,
        )
        times = list(self._workers.command(dict.fromkeys(measuring, command)).values())
        links = time_hosts(self._workers, repeats)
        cluster = session_cluster(places, devices, self.speeds, links)
        if crowded := crowded_machine(self.speeds, places, devices):
            self._note(crowded)
        profile = profile_of(short.captured, times)
        if short.captured is not self.captured:
            profile = profile.of_repeated_blocks(self.graph, short.alike)
        return self._with_short_runs(profile, cluster, measuring), cluster

    def _with_short_runs(
        self, profile: Profile, cluster: Cluster, accelerators: Sequence[int]
    ) -> Profile:
        """Run a few pipelines of the whole, and add what they took longer than the profile says.

        Args:
            profile: of operators.
            cluster: of the workers.
            accelerators: to run them on.
        """
        precision = self.method.precision
        method = Method()
        if precision != method.precision:
            # Autocast's copies of weights make all policies recompute that move them.
            method = Method(policy=STASH.name, precision=precision)

        def measure(placement: Placement) -> Outcome:
            return self.measure(Candidate(placement, method), SHORT_MINIBATCHES)

        runs = run_short(profile, accelerators, measure)
        self.timeline = ()
        return with_short_runs(profile, Workload.of(profile, method), cluster, runs, self._note)
