"""The page of a run: one file that a browser shows without anything else."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from functools import cache
from importlib import metadata, resources
from pathlib import Path

import jinja2

from drlpp.errors import InvalidFile
from drlpp.io.documents import write_atomically
from drlpp.io.run_folder import REPORT_NAME
from drlpp.reporting.run_files import RunFiles, read_run
from drlpp.reporting.sections import sections_of


def write_report(folder: Path) -> Path:
    """Write the report of a run into its folder, and return its path.

    The page is one file, which loads nothing from elsewhere.

    Raises:
        InvalidFile: it is no run's folder.
        StorageFailure: it cannot be written.
    """
    files = read_run(folder)
    path = folder / REPORT_NAME
    write_atomically(path, render(files).encode())
    return path


def render(files: RunFiles) -> str:
    """Return the page as HTML."""
    found = tuple(sections_of(files))
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
        _text("page.html.jinja")
    )
    return template.render(
        title=_title(files),
        command=files.record.command,
        sections=found,
        # Not even a name of a user's model may end the script that it stands in.
        charts=jinja2.utils.markupsafe.Markup(
            json.dumps([s.chart for s in found if s.chart is not None]).replace("<", "\\u003c")
        ),
        library=jinja2.utils.markupsafe.Markup(_vega()),
        program=jinja2.utils.markupsafe.Markup(_text("page.js")),
    )


def _text(name: str) -> str:
    return resources.files("drlpp.reporting").joinpath(name).read_text("utf-8")


@cache
def _vega() -> str:
    """Return the programs that draw charts, as one script.

    Making it takes seconds, so it is kept where programs of this user keep such things.
    """
    import vl_convert

    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(home, "drlpp", f"vega-{metadata.version('vl-convert-python')}.js")
    with suppress(OSError):
        return path.read_text("utf-8")
    # Its types forget that the argument may be left out.
    bundle: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]
    script = bundle.replace("</script", "<\\/script")
    with suppress(OSError, InvalidFile):
        write_atomically(path, script.encode())
    return script


def _title(files: RunFiles) -> str:
    for document in (files.comparison, files.race):
        if document is not None:
            return document.model
    return files.folder.name if files.placement is None else str(files.placement.model)
