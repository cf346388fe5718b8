"""The run of a placement as live workers make it: a schedule with a window, for one shape."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

from drlpp.schedule.analysis.window import Window
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.simulator.playing.endless import EndlessProgram, endless_program
from drlpp.simulator.playing.program import Program

_CACHED_PASSES = 5_000
"""Programs of more forward passes are compiled anew each time, since they take much memory."""


@dataclass(frozen=True)
class Plan:
    """A run that begins and ends empty, for pipelines of one shape, whatever their costs.

    Attributes:
        window: that is measured.
        program: with workers numbered stage by stage.
        marks: for the begin and end of every step of the window the update of each worker that
            completes it.
    """

    window: Window
    program: Program
    marks: tuple[list[int], ...]

    @classmethod
    def of(cls, pipeline: Pipeline, method: Method, window: Window) -> Plan:
        """Compile a schedule that is as long as the window needs."""
        with _no_search_for_cycles():
            program = Program.of(method.schedule_for(pipeline, window.minibatches))
        return cls(window, program, tuple(program.marks(window)))


@contextmanager
def _no_search_for_cycles() -> Iterator[None]:
    """Pause the search for reference cycles.

    Long schedules are a million objects without cycles, and the search takes a third longer.
    """
    searching = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searching:
            gc.enable()


_cached_plan = lru_cache(maxsize=64)(Plan.of)


def plan_for(pipeline: Pipeline, method: Method, window: Window) -> Plan:
    """Return the plan for the shape of a pipeline; the numbers of its workers do not matter."""
    passes = len(pipeline.stages) * window.minibatches * method.microbatches
    make = _cached_plan if passes <= _CACHED_PASSES else Plan.of
    return make(pipeline.numbered, method, window)


def endless_for(pipeline: Pipeline, method: Method) -> EndlessProgram | None:
    """Return what repeats for ever; likewise.

    None is where it cannot be found (:func:`drlpp.simulator.playing.endless.endless_program`).
    """
    return _cached_endless(pipeline.numbered, method)


@lru_cache(maxsize=256)
def _cached_endless(shape: Pipeline, method: Method) -> EndlessProgram | None:
    with _no_search_for_cycles():
        return endless_program(shape, method)
