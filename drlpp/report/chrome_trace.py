"""A timeline as a trace of Chrome's Trace Event Format, which Perfetto opens too.

Hosts are processes and workers their threads; numbers of both count from 1, since viewers take 0
for an idle processor. Times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.timeline import Span, TimedAction, row_name, spans_of

Event = dict[str, Any]


def trace_of(
    timeline: Sequence[TimedAction],
    pipeline: Pipeline,
    *,
    host_of: Mapping[int, str],
    window: tuple[float, float] | None = None,
    title: str = "",
) -> dict[str, Any]:
    """Return the trace as plain data, ready for ``json.dumps``.

    Every span is a complete event.

    Args:
        timeline: what :func:`drlpp.schedule.timeline.play` returned or a run recorded.
        pipeline: names and orders the workers by stage.
        host_of: the name of every worker's host.
        window: begin and end of what is measured; marked.
        title: kept with the trace.
    """
    process_of = {name: number for number, name in enumerate(dict.fromkeys(host_of.values()), 1)}
    threads = {worker: (process_of[host_of[worker]], worker + 1) for worker in host_of}
    events = [
        *_names(process_of, threads, pipeline),
        *(_complete_event(span, threads[span.worker]) for span in spans_of(timeline)),
    ]
    if window is not None:
        events += [
            {"ph": "i", "s": "g", "pid": 1, "tid": 1, "ts": _microseconds(moment), "name": name}
            for name, moment in zip(("window begins", "window ends"), window, strict=True)
        ]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"title": title}}


def _names(
    process_of: Mapping[str, int], threads: Mapping[int, tuple[int, int]], pipeline: Pipeline
) -> Iterator[Event]:
    for host, process in process_of.items():
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": host}}
    for order, (worker, stages) in enumerate(pipeline.stages_by_worker.items()):
        process, thread = threads[worker]
        common = {"ph": "M", "pid": process, "tid": thread}
        named = {"name": f"{row_name(stages)} · worker {worker}"}
        yield {**common, "name": "thread_name", "args": named}
        yield {**common, "name": "thread_sort_index", "args": {"sort_index": order}}


def _complete_event(span: Span, thread: tuple[int, int]) -> Event:
    start, end = _microseconds(span.start), _microseconds(span.end)
    return {
        "ph": "X",
        "name": f"{span.kind.label} {span.number}".rstrip(),
        "cat": span.kind.label,
        "pid": thread[0],
        "tid": thread[1],
        "ts": start,
        "dur": round(end - start, 3),
    }


def _microseconds(seconds: float) -> float:
    return round(1e6 * seconds, 3)
