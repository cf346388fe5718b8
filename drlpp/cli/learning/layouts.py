"""A user's own layouts in a race: ``--compare`` as contenders, and what is said of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from drlpp.capturing.capture import CapturedModel
from drlpp.cli.showing.layout_report import layout_line
from drlpp.exporting.layouts.module_cuts import read_layout
from drlpp.placement.candidate import Candidate
from drlpp.racing.comparison import Comparison
from drlpp.racing.contenders import YOURS, Contender
from drlpp.schedule.method import Method


def layout_contenders(
    given: Sequence[str], captured: CapturedModel, workers: int, method: Method
) -> dict[str, Contender]:
    """Return a contender for each layout, by the layout as it was given.

    Raises:
        InvalidInput: a layout cannot be read, or has more stages than there are workers.
    """
    found = {}
    for number, text in enumerate(given, 1):
        placement = read_layout(text, captured.task.module, captured.graph, workers)
        name = YOURS if len(given) == 1 else f"{YOURS} {number}"
        found[text] = Contender.of(Candidate(placement, method), name)
    return found


def measured_lines(comparison: Comparison, layouts: Mapping[str, Contender]) -> Iterator[str]:
    """Yield a sentence for each layout that was measured, beside the fastest in the race."""
    seconds = [median(one.seconds) for one in comparison.contenders if one.seconds]
    for text, layout in layouts.items():
        for contender in comparison.contenders:
            measurement = contender.median_measurement
            if contender.found_by == layout.found_by and measurement is not None:
                own = median(contender.seconds) if contender.seconds else 0.0
                if own:
                    yield layout_line(text, own, min(seconds), measurement.workers)
