"""Reading a profile from whichever file a user has."""

from __future__ import annotations

from pathlib import Path

from drlpp.costs.files.cost_table import read_cost_table
from drlpp.costs.files.pipedream_profile import read_pipedream_profile
from drlpp.costs.profile import Profile
from drlpp.io.documents import read_document


def read_profile(path: Path) -> Profile:
    """Read a profile of this project, a table of costs (``.csv``), or PipeDream's ``graph.txt``.

    Raises:
        InvalidFile: naming the file and what is wrong in it.
    """
    match path.suffix:
        case ".json" | ".yaml" | ".yml":
            return read_document(path, Profile)
        case ".csv":
            return read_cost_table(path)
    return read_pipedream_profile(path)
