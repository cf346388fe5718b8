"""Profiling on the workers of a session: operators, links, and a few short runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from drlpp.capturing.blocks import shorten
from drlpp.costs.profile import Profile
from drlpp.costs.profiles.short_runs import SHORT_MINIBATCHES, run_short, with_short_runs
from drlpp.costs.workload import Workload
from drlpp.io.documents import read_document, write_document
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Outcome
from drlpp.placement.placement import Placement
from drlpp.runtime.deploying.profile_commands import measuring_workers, profile_command, profile_of
from drlpp.runtime.session.cluster_discovery import crowded_machine, session_cluster, time_hosts
from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import STASH
from drlpp.specs.cluster import Cluster

if TYPE_CHECKING:
    from drlpp.runtime.session.session import ClusterSession


def profiled(session: ClusterSession, repeats: int) -> tuple[Profile, Cluster]:
    """Return what :meth:`ClusterSession.profile` says."""
    workers = session.worker_group
    workers.prepare()
    places = workers.hosts.places
    devices = [workers.devices[worker] for worker in range(session.accelerators)]
    measuring = measuring_workers(session.speeds, places, devices)
    short = shorten(session.captured)
    command = profile_command(
        session.captured,
        short.captured,
        session.method,
        session.optimizer,
        repeats,
        workers.new_name("profile"),
        measuring,
        workers.transport(measuring),
    )
    times = list(workers.command(dict.fromkeys(measuring, command)).values())
    cluster = session_cluster(places, devices, session.speeds, time_hosts(workers, repeats))
    if crowded := crowded_machine(session.speeds, places, devices):
        session.note(crowded)
    profile = profile_of(short.captured, times)
    if short.captured is not session.captured:
        profile = profile.of_repeated_blocks(session.graph, short.alike)

    # A few pipelines of the whole: what they take longer than the profile says is added.
    precision = session.method.precision
    method = Method()
    if precision != method.precision:
        # Autocast's copies of weights make all policies recompute that move them.
        method = Method(policy=STASH.name, precision=precision)

    def measure(placement: Placement) -> Outcome:
        return session.measure(Candidate(placement, method), SHORT_MINIBATCHES)

    runs = run_short(profile, measuring, measure)
    session.timeline = ()
    workload = Workload.of(profile, method)
    return with_short_runs(profile, workload, cluster, runs, session.note), cluster


def load_or_measure_profile(session: ClusterSession, folder: Path) -> tuple[Profile, Cluster]:
    """Time operators and links on the workers, or take what an interrupted run has measured.

    Raises:
        RunFailure: if the workers fail.
    """
    profile_path, cluster_path = folder / "profile.json", folder / "cluster.yaml"
    if profile_path.exists() and cluster_path.exists():
        return read_document(profile_path, Profile), read_document(cluster_path, Cluster)
    profile, cluster = session.profile()
    write_document(profile_path, profile)
    write_document(cluster_path, cluster)
    return profile, cluster
