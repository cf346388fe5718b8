"""A profile that is measured once for all runs of a folder."""

from __future__ import annotations

from pathlib import Path

from drlpp.costs.profile import Profile
from drlpp.io.documents import read_document, write_document
from drlpp.runtime.session.session import ClusterSession
from drlpp.specs.cluster import Cluster


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
